package status

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// Kind is a kind of policy and how to tell about it.
type Kind struct {
	// Name is the kind, "NetworkPolicy".
	Name string
	// Resource is what the API server serves it as.
	Resource schema.GroupVersionResource
	// Diagnose returns what of o cannot be honoured. It may not change o.
	Diagnose func(o *unstructured.Unstructured) []policy.Finding
	// Sinks are the ways to store conditions, the preferred first. None stores
	// nothing; there are still metrics and Events.
	Sinks []Sink
}

// NetworkPolicyResource is where NetworkPolicies are served.
var NetworkPolicyResource = networkingv1.SchemeGroupVersion.WithResource("networkpolicies")

// NetworkPolicies returns the Kind of NetworkPolicies, which diagnose knows to
// judge. Fields of the spec that are newer than this program, and which therefore
// diagnose cannot see, are findings of their own.
func NetworkPolicies(diagnose func(*networkingv1.NetworkPolicy) []policy.Finding, sinks ...Sink) Kind {
	return Kind{
		Name:     "NetworkPolicy",
		Resource: NetworkPolicyResource,
		Sinks:    sinks,
		Diagnose: func(u *unstructured.Unstructured) []policy.Finding {
			var o networkingv1.NetworkPolicy
			err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, &o, true)
			ref := policy.Ref{Kind: "NetworkPolicy", Namespace: u.GetNamespace(), Name: u.GetName(), Generation: u.GetGeneration()}
			unknown, err := unknownFields(ref, err)
			if err != nil {
				return []policy.Finding{{Policy: ref, Field: "spec", Reason: policy.FeatureNotSupported, Message: err.Error(), Whole: true}}
			}
			return append(diagnose(&o), unknown...)
		},
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

// Validate names every field that cannot work.
func (k Kind) Validate() error {
	var errs []error
	if k.Name == "" {
		errs = append(errs, errors.New("Name is empty"))
	}
	if k.Resource.Resource == "" {
		errs = append(errs, errors.New("Resource is empty"))
	}
	if k.Diagnose == nil {
		errs = append(errs, errors.New("Diagnose is nil"))
	}
	return errors.Join(errs...)
}
