package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"sigs.k8s.io/kube-network-policies/pkg/base/printable"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// withUnknownFields returns a function that decodes an object of a kind, diagnoses
// it, and adds a finding for each field of the spec that the type does not have.
func withUnknownFields[O any](kind string, newObject func() O, diagnose func(O) []policy.Finding) func(*unstructured.Unstructured) []policy.Finding {
	return func(u *unstructured.Unstructured) []policy.Finding {
		o := newObject()
		err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, o, true)
		ref := policy.Ref{Kind: kind, Namespace: u.GetNamespace(), Name: u.GetName(), Generation: u.GetGeneration()}
		unknown, err := unknownFields(err)
		if err != nil {
			return []policy.Finding{{Policy: ref, Field: field.NewPath("spec"), Reason: policy.FeatureNotSupported, Message: printable.Text(err.Error()), Whole: true}}
		}
		return addUnknown(diagnose(o), ref, unknown)
	}
}

// unknownField is a field that the type of its parent does not have.
type unknownField struct {
	parent string // path of the parent, "spec.ingress[0]"
	name   string
}

func (f unknownField) path() string { return f.parent + "." + f.name }

// unknownFields returns the unknown fields of the spec, by path, from the error of
// a strict conversion. Any other error is returned.
//
// The converter reports each field only as text, `unknown field "spec.a.b"`, and
// neither its error types nor its return values have the path. An error that reads
// differently would hide a newer field from the policy's author.
// TestStrictConversionErrorText checks the text for the version of apimachinery in
// go.mod.
func unknownFields(err error) ([]unknownField, error) {
	strict, ok := runtime.AsStrictDecodingError(err)
	if !ok {
		return nil, err
	}
	var fields []unknownField
	for _, e := range strict.Errors() {
		var path string
		if _, err := fmt.Sscanf(e.Error(), "unknown field %q", &path); err != nil || !strings.HasPrefix(path, "spec.") {
			continue // a field of the status, which the writer itself may have added
		}
		dot := strings.LastIndexByte(path, '.') // names of fields in a spec have no dots
		fields = append(fields, unknownField{parent: path[:dot], name: path[dot+1:]})
	}
	slices.SortFunc(fields, func(a, b unknownField) int { return cmp.Compare(a.path(), b.path()) })
	return fields, nil
}

// addUnknown adds unknown fields to the findings of the policy ref. A part with a
// finding and an unknown field is not invalid: the unknown field is the cause, and
// is named in the finding of that part.
func addUnknown(findings []policy.Finding, ref policy.Ref, unknown []unknownField) []policy.Finding {
	findings = slices.Clone(findings)
	for _, u := range unknown {
		i := slices.IndexFunc(findings, func(f policy.Finding) bool { return f.Field.String() == u.parent })
		if i < 0 {
			findings = append(findings, policy.Finding{
				Policy: ref, Field: field.NewPath(printable.Text(u.path())), Reason: policy.FeatureNotSupported,
				Message: "the field is newer than this implementation, which ignores it",
			})
			continue
		}
		findings[i].Reason = policy.FeatureNotSupported
		findings[i].Message += fmt.Sprintf("; %s is newer than this implementation", printable.Text(u.name))
	}
	return findings
}
