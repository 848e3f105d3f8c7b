package status

import (
	"errors"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// Kind is a kind of policy that gets conditions.
type Kind struct {
	// Name is the kind, "NetworkPolicy".
	Name string
	// Resources are its resource in each supported version, the best first. The writer waits
	// while the API server serves none of them.
	Resources []schema.GroupVersionResource
	// Diagnose returns the parts of o that are not enforced as written. It must not modify o.
	Diagnose func(o *unstructured.Unstructured) []policy.Finding
	// Sinks are the ways to store conditions, in order of preference. Without sinks there are
	// only metrics and Events.
	Sinks []Sink
	// Adds are fields that policies of the kind should be able to have, as for lackingFields. What
	// the API server lacks of them is logged.
	Adds []string
}

// NewKind returns the Kind with this name, served as one of resources. newObject returns an
// empty object for diagnose, which returns the findings of one policy. Fields of the spec
// that are newer than this program are invisible to diagnose, and become findings too.
func NewKind[O any](name string, resources []schema.GroupVersionResource, newObject func() O, diagnose func(O) []policy.Finding, sinks ...Sink) Kind {
	return Kind{Name: name, Resources: resources, Diagnose: withUnknownFields(name, newObject, diagnose), Sinks: sinks}
}

// Validate returns an error that names every invalid field.
func (k Kind) Validate() error {
	var errs []error
	if k.Name == "" {
		errs = append(errs, errors.New("Name is empty"))
	}
	if len(k.Resources) == 0 {
		errs = append(errs, errors.New("Resources are empty"))
	}
	if k.Diagnose == nil {
		errs = append(errs, errors.New("Diagnose is nil"))
	}
	return errors.Join(errs...)
}
