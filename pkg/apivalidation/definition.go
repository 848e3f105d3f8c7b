package apivalidation

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"sync"

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

// crds has the definitions of the administrators' kinds as network-policy-api has
// released them: those of v1alpha2 in v0.2.0, those of v1alpha1, for the last time, in
// v0.1.7. update.sh fetches them, and a test of tests/integration/crds compares them
// with the releases.
//
//go:embed crds/*.yaml
var crds embed.FS

// definitions returns the definitions of crds by kind. Each is compiled when the first
// policy of its kind is validated. Both take some tens of milliseconds. It panics if a
// definition cannot be read, and a function that it returns if one cannot be compiled.
var definitions = sync.OnceValue(func() map[schema.GroupVersionKind]func() *definition {
	all := map[schema.GroupVersionKind]func() *definition{}
	err := fs.WalkDir(crds, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		manifest, err := crds.ReadFile(path)
		if err != nil {
			return err
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(manifest, &crd); err != nil {
			return fmt.Errorf("%s: %w", path, err)
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
		return nil
	})
	if err != nil {
		panic(fmt.Sprintf("read the definitions: %v", err))
	}
	return all
})

// definition is what an API server compiles a CustomResourceDefinition to. It is
// immutable.
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

// validate does what an API server does with a new object, in its order: it takes
// away what is unknown, adds defaults, and then validates. It changes o.
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

// keepsRulesFromRunning reports whether values are so wrong that API servers do not
// evaluate the rules of the definition, whose cost is bounded for valid values only.
func keepsRulesFromRunning(errs field.ErrorList) bool {
	for _, err := range errs {
		switch err.Type {
		case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid:
			return true
		}
	}
	return false
}
