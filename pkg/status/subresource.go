package status

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
)

// subresource stores conditions in status.conditions. Typed clients know no
// status of a NetworkPolicy any more, hence the dynamic one.
type subresource struct {
	client    dynamic.Interface
	discovery discovery.DiscoveryInterface
	resource  schema.GroupVersionResource
	prefix    string
}

// NewSubresourceSink returns the Sink that applies conditions to the status
// subresource of resource, with types that begin with "prefix/" unless prefix is
// empty.
func NewSubresourceSink(client dynamic.Interface, discovery discovery.DiscoveryInterface, resource schema.GroupVersionResource, prefix string) Sink {
	return &subresource{client, discovery, resource, prefix}
}

func (s *subresource) Name() string { return SubresourceSink }

func (s *subresource) Read(o *unstructured.Unstructured) []metav1.Condition {
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	var conditions []metav1.Condition
	for _, item := range list {
		fields, ok := item.(map[string]any)
		if !ok {
			continue
		}
		var c metav1.Condition
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &c); err != nil {
			continue // another one's, or written anew
		}
		if c, ours := withoutPrefix(s.prefix, c); ours {
			conditions = append(conditions, c)
		}
	}
	return conditions
}

func (s *subresource) Marked(o *unstructured.Unstructured) bool { return managed(o, "status") }

// Probe asks discovery whether there is such a subresource, and then with a dry
// run whether it stores: with its feature gate off, an API server answers 200,
// drops what is new and keeps what it has. So the trial is about conditions that
// it cannot have.
func (s *subresource) Probe(ctx context.Context, o *unstructured.Unstructured, conditions []metav1.Condition) error {
	name := s.resource.Resource + "/status"
	served, err := serves(ctx, s.discovery, s.resource.GroupVersion(), name)
	if err != nil {
		return err
	}
	if !served {
		return fmt.Errorf("%s: %w", name, ErrUnserved)
	}
	trial := slices.Clone(conditions)
	for i := range trial {
		trial[i].Message = "A trial, which is not stored."
	}
	return s.apply(ctx, o, trial, metav1.DryRunAll)
}

func (s *subresource) Write(ctx context.Context, o *unstructured.Unstructured, conditions []metav1.Condition) error {
	return s.apply(ctx, o, conditions)
}

// apply writes and looks at what the server says it has stored.
func (s *subresource) apply(ctx context.Context, o *unstructured.Unstructured, conditions []metav1.Condition, dryRun ...string) error {
	list := make([]any, 0, len(conditions))
	for _, c := range withPrefix(s.prefix, conditions) {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&c)
		if err != nil {
			return fmt.Errorf("encode condition %s: %w", c.Type, err)
		}
		list = append(list, fields)
	}
	u := identity(o)
	u.SetResourceVersion(o.GetResourceVersion())
	if err := unstructured.SetNestedSlice(u.Object, list, "status", "conditions"); err != nil {
		return fmt.Errorf("encode conditions: %w", err)
	}
	stored, err := s.client.Resource(s.resource).Namespace(o.GetNamespace()).
		Apply(ctx, o.GetName(), u, metav1.ApplyOptions{FieldManager: FieldManager, Force: true, DryRun: dryRun}, "status")
	if err != nil {
		return err
	}
	if !same(s.Read(stored), conditions) {
		return fmt.Errorf("%s/status answers and does not store: %w", s.resource.Resource, ErrUnserved)
	}
	return nil
}

// Clear applies an empty status: what we alone own of it goes.
func (s *subresource) Clear(ctx context.Context, o *unstructured.Unstructured) error {
	_, err := s.client.Resource(s.resource).Namespace(o.GetNamespace()).
		Apply(ctx, o.GetName(), identity(o), metav1.ApplyOptions{FieldManager: FieldManager, Force: true}, "status")
	return err
}
