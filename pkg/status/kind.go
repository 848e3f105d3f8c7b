package status

import (
	"errors"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// Kind is a kind of policy that gets conditions.
type Kind struct {
	// Name is the kind, "NetworkPolicy".
	Name string
	// Resource is its resource. While the API server does not serve it, the writer
	// waits for it.
	Resource schema.GroupVersionResource
	// Diagnose returns the parts of o that are not enforced as written. It must not
	// change o.
	Diagnose func(o *unstructured.Unstructured) []policy.Finding
	// Sinks are the ways to store conditions, in order of preference. Without any,
	// no conditions are stored; there are still metrics and Events.
	Sinks []Sink
}

// NewKind returns the Kind of that name, which is served as resource. newObject
// returns an empty object for diagnose, which returns the findings of one policy.
// Fields of the spec that are newer than this program, and therefore are not
// visible to diagnose, become findings too.
func NewKind[O any](name string, resource schema.GroupVersionResource, newObject func() O, diagnose func(O) []policy.Finding, sinks ...Sink) Kind {
	return Kind{name, resource, withUnknownFields(name, newObject, diagnose), sinks}
}

// Validate returns an error that names every invalid field.
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
