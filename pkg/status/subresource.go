package status

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/served"
)

// subresource stores conditions in status.conditions. It uses a dynamic client
// because the NetworkPolicy type no longer has a status.
type subresource struct {
	client    dynamic.Interface
	discovery rest.Interface
	resource  schema.GroupResource
	prefix    string
}

// NewSubresourceSink returns the Sink that applies conditions to the status
// subresource of resource, with types that begin with "prefix/" unless prefix is
// empty.
func NewSubresourceSink(client dynamic.Interface, discovery rest.Interface, resource schema.GroupResource, prefix string) Sink {
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
			continue // malformed: another manager's, or ours and rewritten
		}
		if c, ours := withoutPrefix(s.prefix, c); ours {
			conditions = append(conditions, c)
		}
	}
	return conditions
}

func (s *subresource) Stores(o *unstructured.Unstructured, conditions []metav1.Condition) bool {
	return sameConditions(s.Read(o), conditions)
}

func (s *subresource) Marked(o *unstructured.Unstructured) bool { return managed(o, "status") }

// Probe checks with discovery whether the subresource exists, and then with a dry run whether
// the server stores conditions. With its feature gate off, a server answers 200, ignores new
// conditions and keeps old ones. Therefore the dry run applies conditions that the object
// cannot have.
func (s *subresource) Probe(ctx context.Context, o *unstructured.Unstructured, conditions []metav1.Condition) error {
	name := s.resource.Resource + "/status"
	found, err := served.Has(ctx, s.discovery, o.GroupVersionKind().GroupVersion(), name)
	if err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("%s: %w", name, ErrNotServed)
	}
	probe := slices.Clone(conditions)
	for i := range probe {
		probe[i].Message = "Dry run, not stored."
	}
	return s.apply(ctx, o, probe, metav1.DryRunAll)
}

func (s *subresource) Write(ctx context.Context, o *unstructured.Unstructured, conditions []metav1.Condition) error {
	return s.apply(ctx, o, conditions)
}

// apply writes conditions and checks that the server's answer contains them.
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
	stored, err := resourceOf(s.client, s.resource, o).Namespace(o.GetNamespace()).
		Apply(ctx, o.GetName(), u, metav1.ApplyOptions{FieldManager: FieldManager, Force: true, DryRun: dryRun}, "status")
	if err != nil {
		return err
	}
	kept := slices.DeleteFunc(s.Read(stored), func(c metav1.Condition) bool { return c.Type == removedType }) // another client's
	if !sameConditions(kept, conditions) {
		return fmt.Errorf("%s/status does not store conditions: %w", s.resource.Resource, ErrNotServed)
	}
	return nil
}

// Clear applies an empty status, which removes the fields that only we own.
func (s *subresource) Clear(ctx context.Context, o *unstructured.Unstructured) error {
	_, err := resourceOf(s.client, s.resource, o).Namespace(o.GetNamespace()).
		Apply(ctx, o.GetName(), identity(o), metav1.ApplyOptions{FieldManager: FieldManager, Force: true}, "status")
	return err
}
