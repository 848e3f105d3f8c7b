package status

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// Annotation is the key under which conditions are stored as a JSON list on
// objects that have no status.
const Annotation = "kube-network-policies.x-k8s.io/conditions"

// annotation stores conditions in an annotation of the object. It needs the
// right to patch the object, which the one writer may have and the agents on the
// nodes must not.
type annotation struct {
	client   dynamic.Interface
	resource schema.GroupVersionResource
	prefix   string
}

// NewAnnotationSink returns the Sink that stores conditions of resource in
// Annotation, with types that begin with "prefix/" unless prefix is empty.
func NewAnnotationSink(client dynamic.Interface, resource schema.GroupVersionResource, prefix string) Sink {
	return &annotation{client, resource, prefix}
}

func (a *annotation) Name() string { return AnnotationSink }

// Read ignores an annotation with any other content, so that it is overwritten.
func (a *annotation) Read(o *unstructured.Unstructured) []metav1.Condition {
	var conditions []metav1.Condition
	if err := json.Unmarshal([]byte(o.GetAnnotations()[Annotation]), &conditions); err != nil {
		return nil // missing, or written by another client
	}
	for i := range conditions {
		var ours bool
		if conditions[i], ours = withoutPrefix(a.prefix, conditions[i]); !ours {
			return nil
		}
	}
	return conditions
}

func (a *annotation) Marked(o *unstructured.Unstructured) bool {
	_, ok := o.GetAnnotations()[Annotation]
	return ok
}

// Probe checks with a dry run whether the writer has the right to patch.
func (a *annotation) Probe(ctx context.Context, o *unstructured.Unstructured, conditions []metav1.Condition) error {
	return a.apply(ctx, o, conditions, metav1.DryRunAll)
}

func (a *annotation) Write(ctx context.Context, o *unstructured.Unstructured, conditions []metav1.Condition) error {
	return a.apply(ctx, o, conditions)
}

func (a *annotation) apply(ctx context.Context, o *unstructured.Unstructured, conditions []metav1.Condition, dryRun ...string) error {
	value, err := json.Marshal(withPrefix(a.prefix, problemFirst(conditions)))
	if err != nil {
		return fmt.Errorf("encode conditions: %w", err)
	}
	u := identity(o)
	u.SetResourceVersion(o.GetResourceVersion())
	u.SetAnnotations(map[string]string{Annotation: string(value)})
	_, err = a.client.Resource(a.resource).Namespace(o.GetNamespace()).
		Apply(ctx, o.GetName(), u, metav1.ApplyOptions{FieldManager: FieldManager, Force: true, DryRun: dryRun})
	return err
}

// Clear removes the key, also where another client has copied it with the object
// and thus owns it. Unlike an apply, this patch cannot create an object.
func (a *annotation) Clear(ctx context.Context, o *unstructured.Unstructured) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":         o.GetUID(),
		"annotations": map[string]any{Annotation: nil},
	}})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	_, err = a.client.Resource(a.resource).Namespace(o.GetNamespace()).
		Patch(ctx, o.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager})
	return err
}
