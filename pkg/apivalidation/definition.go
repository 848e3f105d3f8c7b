package apivalidation

import (
	"context"
	_ "embed"
	"fmt"
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

// The definitions as network-policy-api has released them: ClusterNetworkPolicy in
// v0.2.0, the other two, for the last time, in v0.1.7. update.sh fetches them, and a
// test of tests/integration/crds compares them with the releases.
var (
	//go:embed crds/policy.networking.k8s.io_adminnetworkpolicies.yaml
	adminNetworkPolicies []byte
	//go:embed crds/policy.networking.k8s.io_baselineadminnetworkpolicies.yaml
	baselineAdminNetworkPolicies []byte
	//go:embed crds/policy.networking.k8s.io_clusternetworkpolicies.yaml
	clusterNetworkPolicies []byte
)

const policyGroup = "policy.networking.k8s.io"

// definitions are those of the administrators' kinds. Each is compiled when the first
// policy of its kind is validated, which takes some tens of milliseconds.
var definitions = map[schema.GroupVersionKind]func() *definition{
	{Group: policyGroup, Version: "v1alpha1", Kind: "AdminNetworkPolicy"}:         compiled(adminNetworkPolicies, "v1alpha1"),
	{Group: policyGroup, Version: "v1alpha1", Kind: "BaselineAdminNetworkPolicy"}: compiled(baselineAdminNetworkPolicies, "v1alpha1"),
	{Group: policyGroup, Version: "v1alpha2", Kind: "ClusterNetworkPolicy"}:       compiled(clusterNetworkPolicies, "v1alpha2"),
}

// compiled returns a function that returns the definition of a version of a kind,
// always the same. It panics if the definition cannot be compiled.
func compiled(manifest []byte, version string) func() *definition {
	return sync.OnceValue(func() *definition {
		d, err := newDefinition(manifest, version)
		if err != nil {
			panic(fmt.Sprintf("compile the definition of %s: %v", version, err))
		}
		return d
	})
}

// definition is what an API server compiles a CustomResourceDefinition to. It is
// immutable.
type definition struct {
	schema *structuralschema.Structural
	values validation.SchemaValidator
	rules  *cel.Validator
}

func newDefinition(manifest []byte, version string) (*definition, error) {
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(manifest, &crd); err != nil {
		return nil, err
	}
	for _, v := range crd.Spec.Versions {
		if v.Name != version {
			continue
		}
		var internal apiextensions.CustomResourceValidation
		if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(v.Schema, &internal, nil); err != nil {
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
	return nil, fmt.Errorf("%s has no version %s", crd.Name, version)
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
