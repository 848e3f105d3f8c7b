// Package apivalidation finds what an API server would refuse of a policy. It owns no
// connection: the administrators' kinds are validated against their definitions, which
// are part of the package, with the API server's own library, and NetworkPolicy by
// rules written after those of the API server. It knows nothing of what policies mean,
// nor of what agents can honour.
package apivalidation

import (
	"fmt"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// networkPolicy is the kind that is part of every API server.
var networkPolicy = networkingv1.SchemeGroupVersion.WithKind("NetworkPolicy")

// Knows reports whether the package validates a kind.
func Knows(kind schema.GroupVersionKind) bool {
	return kind == networkPolicy || definitions()[kind] != nil
}

// Validate returns what API servers would answer to the creation of o, a policy as
// decoded from JSON, with a strict validation of its fields: one error for each field,
// with its path, its value and what is wrong with it. For a policy that they would
// accept there is none. A NetworkPolicy without a namespace is one of the namespace
// "default". The status does not matter. o is not changed.
//
// Numbers must be int64 or float64, as in unstructured objects. A kind that is not
// known (see Knows) is an error of the field "kind".
//
// The definitions are those of the experimental channel: servers that have the
// standard one know fewer fields. Where servers of several versions differ, what one
// of them accepts is accepted here.
func Validate(o map[string]any) field.ErrorList {
	head, errs := typeOf(o)
	if len(errs) > 0 {
		return errs
	}
	o = runtime.DeepCopyJSON(o)
	delete(o, "status")
	if head == networkPolicy {
		return validateNetworkPolicy(o)
	}
	if d := definitions()[head]; d != nil {
		return d().validate(o)
	}
	return field.ErrorList{field.Invalid(field.NewPath("kind"), head.Kind, fmt.Sprintf("%s has no such kind of policy", head.GroupVersion()))}
}

// typeOf returns the kind that an object says it is of.
func typeOf(o map[string]any) (schema.GroupVersionKind, field.ErrorList) {
	var errs field.ErrorList
	text := func(name string) string {
		s, isText := o[name].(string)
		switch path := field.NewPath(name); {
		case o[name] == nil || isText && s == "":
			errs = append(errs, field.Required(path, ""))
		case !isText:
			errs = append(errs, field.TypeInvalid(path, o[name], "must be a string"))
		}
		return s
	}
	version, kind := text("apiVersion"), text("kind")
	if len(errs) > 0 {
		return schema.GroupVersionKind{}, errs
	}
	return schema.FromAPIVersionAndKind(version, kind), nil
}

// unknown is the error of a field that the API does not have.
func unknown(path string) *field.Error {
	return &field.Error{Type: field.ErrorTypeForbidden, Field: path, Detail: "unknown field"}
}

// requireName reports a missing name. The API server's rules for metadata say nothing
// about it, because it would generate one, which kubectl apply refuses.
func requireName(m *metav1.ObjectMeta) field.ErrorList {
	if m.Name != "" {
		return nil
	}
	return field.ErrorList{field.Required(field.NewPath("metadata", "name"), "")}
}
