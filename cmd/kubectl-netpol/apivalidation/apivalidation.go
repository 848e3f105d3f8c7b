// Package apivalidation finds the faults for which an API server would refuse a policy. It
// needs no connection: it validates the administrators' kinds with the API server's own
// library against their CustomResourceDefinitions, which are embedded, and NetworkPolicy
// with rules copied from the API server. It does not know what policies mean or what agents
// can honour.
package apivalidation

import (
	"fmt"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// networkPolicy is built into every API server, so it has no definition in crds.
var networkPolicy = networkingv1.SchemeGroupVersion.WithKind("NetworkPolicy")

// Knows reports whether the package validates a kind.
func Knows(kind schema.GroupVersionKind) bool {
	return kind == networkPolicy || definitions()[kind] != nil
}

// Validate returns the errors with which an API server would answer a strict create request
// for o, a policy decoded from JSON. Each error names a field's path, its value and the
// fault. A policy that would be accepted has no errors. A NetworkPolicy without a namespace
// counts as one in "default". The status is ignored, and o is not changed.
//
// Numbers must be int64 or float64, as in unstructured objects. A kind that is not known
// (see Knows) is an error of the field "kind".
//
// The definitions are those of the experimental channel with the fields of proposals; servers
// with the standard channel know fewer fields. Where server versions disagree, Validate accepts what any of them
// accepts.
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

// typeOf returns the kind from the object's apiVersion and kind.
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

// requireName reports a missing name. The API server's metadata validation allows it
// because the server could generate a name, but kubectl apply refuses it.
func requireName(m *metav1.ObjectMeta) field.ErrorList {
	if m.Name != "" {
		return nil
	}
	return field.ErrorList{field.Required(field.NewPath("metadata", "name"), "")}
}
