package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// seeingAll lets diagnose judge what is known of an object of a kind, and adds
// what is not.
func seeingAll[O any](kind string, diagnose func(*O) []policy.Finding) func(*unstructured.Unstructured) []policy.Finding {
	return func(u *unstructured.Unstructured) []policy.Finding {
		var o O
		err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, &o, true)
		ref := policy.Ref{Kind: kind, Namespace: u.GetNamespace(), Name: u.GetName(), Generation: u.GetGeneration()}
		unknown, err := unknownFields(ref, err)
		if err != nil {
			return []policy.Finding{{Policy: ref, Field: "spec", Reason: policy.FeatureNotSupported, Message: err.Error(), Whole: true}}
		}
		return withUnknown(diagnose(&o), unknown)
	}
}

// unknownFields turns what strict decoding says about fields of the spec into
// findings. Another error is returned.
func unknownFields(ref policy.Ref, err error) ([]policy.Finding, error) {
	strict, ok := runtime.AsStrictDecodingError(err)
	if !ok {
		return nil, err
	}
	var findings []policy.Finding
	for _, e := range strict.Errors() {
		var name string
		if _, err := fmt.Sscanf(e.Error(), "unknown field %q", &name); err != nil || !strings.HasPrefix(name, "spec.") {
			continue // of the status, which is ours to write
		}
		findings = append(findings, policy.Finding{
			Policy: ref, Field: name, Reason: policy.FeatureNotSupported,
			Message: "the field is newer than this implementation, which does not see it",
		})
	}
	slices.SortFunc(findings, func(a, b policy.Finding) int { return cmp.Compare(a.Field, b.Field) })
	return findings, nil
}

// withUnknown joins both kinds of findings. A part that cannot be read and has an
// unknown field is not invalid: the field is why, and is named with the part.
func withUnknown(findings, unknown []policy.Finding) []policy.Finding {
	findings = slices.Clone(findings)
	for _, u := range unknown {
		dot := strings.LastIndexByte(u.Field, '.') // names in a spec have none
		part, name := u.Field[:dot], u.Field[dot+1:]
		i := slices.IndexFunc(findings, func(f policy.Finding) bool { return f.Field == part })
		if i < 0 {
			findings = append(findings, u)
			continue
		}
		findings[i].Reason = policy.FeatureNotSupported
		findings[i].Message += fmt.Sprintf("; %s is newer than this implementation", name)
	}
	return findings
}
