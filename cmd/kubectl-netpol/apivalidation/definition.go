package apivalidation

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"strings"
	"sync"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	metavalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

// crds contains the definitions of the administrators' kinds as network-policy-api released
// them: v1beta1 and v1alpha2 from v0.3.0, v1alpha1 from v0.1.7, the last release that has it. update.sh
// fetches them, and a test in tests/cluster/integration/crds compares them with the
// releases. The folder proposals has the definitions of kinds that are only proposed, and patches
// that add the fields of proposals to the definition of a resource, in a folder with its name. Whether
// an agent enforces them depends on its feature gates, which is not for this package. Patches in the
// folder stricter, which refuse what the release accepts, are for servers only.
//
//go:embed crds
var crds embed.FS

// definitions maps each kind in crds to its definition, which is compiled when the first
// policy of the kind is validated. Reading and compiling each take some tens of
// milliseconds. Faulty definitions are programmer errors and panic.
var definitions = sync.OnceValue(func() map[schema.GroupVersionKind]func() *definition {
	all := map[schema.GroupVersionKind]func() *definition{}
	files, err := definitionFiles()
	for _, path := range files {
		crd, err := readDefinition(path)
		if err != nil {
			panic(fmt.Sprintf("%s: %v", path, err))
		}
		for _, v := range crd.Spec.Versions {
			kind := schema.GroupVersionKind{Group: crd.Spec.Group, Version: v.Name, Kind: crd.Spec.Names.Kind}
			all[kind] = sync.OnceValue(func() *definition {
				d, err := newDefinition(v.Schema)
				if err != nil {
					panic(fmt.Sprintf("compile the definition of %s: %v", kind, err))
				}
				return d
			})
		}
	}
	if err != nil {
		panic(fmt.Sprintf("read the definitions: %v", err))
	}
	return all
})

// definitionFiles returns the files with definitions.
func definitionFiles() ([]string, error) {
	released, err := fs.Glob(crds, "crds/*.yaml")
	if err != nil {
		return nil, err
	}
	proposed, err := fs.Glob(crds, "crds/proposals/*.yaml")
	return append(released, proposed...), err
}

// readDefinition reads a file with a definition and adds the fields of proposals.
func readDefinition(path string) (*apiextensionsv1.CustomResourceDefinition, error) {
	manifest, err := crds.ReadFile(path)
	if err != nil {
		return nil, err
	}
	resource := path[strings.LastIndexAny(path, "_/")+1:]
	manifest, err = withProposals(manifest, strings.TrimSuffix(resource, ".yaml"))
	if err != nil {
		return nil, err
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	return crd, yaml.UnmarshalStrict(manifest, crd)
}

// withProposals applies all patches of proposals to the manifest of a resource.
func withProposals(manifest []byte, resource string) ([]byte, error) {
	files, err := fs.Glob(crds, "crds/proposals/"+resource+"/*.yaml")
	if err != nil {
		return nil, err
	}
	manifest, err = yaml.YAMLToJSON(manifest)
	for _, file := range files {
		if err == nil {
			manifest, err = patched(manifest, file)
		}
	}
	return manifest, err
}

// patched applies the patch in a file of crds to a manifest in JSON.
func patched(manifest []byte, file string) ([]byte, error) {
	text, err := crds.ReadFile(file)
	if err != nil {
		return nil, err
	}
	text, err = yaml.YAMLToJSON(text)
	if err != nil {
		return nil, err
	}
	patch, err := jsonpatch.DecodePatch(text)
	if err != nil {
		return nil, err
	}
	return patch.Apply(manifest)
}

// definition is a CustomResourceDefinition in the form that an API server compiles it to.
// It is immutable.
type definition struct {
	schema *structuralschema.Structural
	values validation.SchemaValidator
	rules  *cel.Validator
}

func newDefinition(schema *apiextensionsv1.CustomResourceValidation) (*definition, error) {
	var internal apiextensions.CustomResourceValidation
	if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(schema, &internal, nil); err != nil {
		return nil, err
	}
	structural, err := structuralschema.NewStructural(internal.OpenAPIV3Schema)
	if err != nil {
		return nil, err
	}
	values, _, err := validation.NewSchemaValidator(internal.OpenAPIV3Schema)
	if err != nil {
		return nil, err
	}
	return &definition{structural, values, cel.NewValidator(structural, true, celconfig.PerCallLimit)}, nil
}

// validate handles o like an API server that creates it, in the same order: prune unknown
// fields, set defaults, validate. It changes o.
func (d *definition) validate(o map[string]any) field.ErrorList {
	var errs field.ErrorList
	meta, found, unknownMeta, err := objectmeta.GetObjectMetaWithOptions(o, objectmeta.ObjectMetaOptions{ReturnUnknownFieldPaths: true})
	if err != nil {
		return field.ErrorList{field.TypeInvalid(field.NewPath("metadata"), o["metadata"], err.Error())}
	}
	if !found {
		meta = &metav1.ObjectMeta{}
	}
	options := structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}
	for _, path := range append(unknownMeta, pruning.PruneWithOptions(o, d.schema, true, options)...) {
		errs = append(errs, unknown(path))
	}
	defaulting.PruneNonNullableNullsWithoutDefaults(o, d.schema)
	defaulting.Default(o, d.schema)

	errs = append(errs, requireName(meta)...)
	meta.Namespace = "" // the server ignores it
	if meta.Name != "" {
		errs = append(errs, metavalidation.ValidateObjectMeta(meta, false, metavalidation.NameIsDNSSubdomain, field.NewPath("metadata"))...)
	}
	values := validation.ValidateCustomResource(nil, o, d.values)
	values = append(values, listtype.ValidateListSetsAndMaps(nil, d.schema, o)...)
	if !keepsRulesFromRunning(values) {
		broken, _ := d.rules.Validate(context.Background(), nil, d.schema, o, nil, celconfig.RuntimeCELCostBudget)
		values = append(values, broken...)
	}
	return append(errs, values...)
}

// keepsRulesFromRunning reports whether errs contains errors that stop API servers from
// evaluating the definition's CEL rules. The cost of a rule is bounded only for values that
// are valid otherwise.
func keepsRulesFromRunning(errs field.ErrorList) bool {
	for _, err := range errs {
		switch err.Type {
		case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid:
			return true
		}
	}
	return false
}
