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

// Annotations of objects without a status.
const (
	// Annotation holds the conditions as a JSON list, without those that report no failure.
	Annotation = "kube-network-policies.x-k8s.io/conditions"
	// SummaryAnnotation lists the parts that are not enforced as written, in a line of at
	// most maxSummary bytes.
	SummaryAnnotation = "kube-network-policies.x-k8s.io/not-enforced"
	// RemovedAnnotation is a line that versions up to 0.2 wrote. It is ours, and therefore removed.
	RemovedAnnotation = "kube-network-policies.x-k8s.io/denials"
)

// maxSummary is the longest line of an annotation, in bytes, that kubectl describe shows
// completely: maxAnnotationLen in k8s.io/kubectl/pkg/describe minus two spaces of
// indentation.
const maxSummary = 138

// annotation stores conditions in annotations of the object. It needs the right to patch the
// object, which only the writer may have; the agents on the nodes must not.
type annotation struct {
	client   dynamic.Interface
	resource schema.GroupResource
	prefix   string
}

// NewAnnotationSink returns the Sink that stores conditions in these annotations. Types begin with
// "prefix/" unless prefix is empty.
func NewAnnotationSink(client dynamic.Interface, resource schema.GroupResource, prefix string) Sink {
	return &annotation{client, resource, prefix}
}

func (a *annotation) Name() string { return AnnotationSink }

// Read ignores an annotation with other content, so that Write overwrites it.
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

func (a *annotation) Stores(o *unstructured.Unstructured, conditions []metav1.Condition) bool {
	if len(conditions) == 0 {
		return !a.Marked(o)
	}
	return sameConditions(a.Read(o), withoutNoFailure(conditions)) && o.GetAnnotations()[SummaryAnnotation] == summary(conditions) && !outdated(o)
}

// summary returns the human-readable annotation, empty for none.
func summary(conditions []metav1.Condition) string {
	if c := problem(conditions); c != nil {
		return truncate(c.Message, maxSummary)
	}
	return ""
}

func (a *annotation) Marked(o *unstructured.Unstructured) bool {
	all := o.GetAnnotations()
	_, conditions := all[Annotation]
	_, summary := all[SummaryAnnotation]
	return conditions || summary || outdated(o)
}

// outdated reports whether o has an annotation that is not written any more.
func outdated(o *unstructured.Unstructured) bool {
	_, found := o.GetAnnotations()[RemovedAnnotation]
	return found
}

// Probe checks with a dry run whether the writer has the right to patch.
func (a *annotation) Probe(ctx context.Context, o *unstructured.Unstructured, conditions []metav1.Condition) error {
	return a.apply(ctx, o, conditions, metav1.DryRunAll)
}

// Write removes the annotations if there are no conditions. An outdated annotation is removed alone: the
// update queues the object again.
func (a *annotation) Write(ctx context.Context, o *unstructured.Unstructured, conditions []metav1.Condition) error {
	switch {
	case len(conditions) == 0:
		return a.remove(ctx, o, o.GetResourceVersion(), Annotation, SummaryAnnotation, RemovedAnnotation)
	case outdated(o):
		return a.remove(ctx, o, o.GetResourceVersion(), RemovedAnnotation)
	}
	return a.apply(ctx, o, conditions)
}

func (a *annotation) apply(ctx context.Context, o *unstructured.Unstructured, conditions []metav1.Condition, dryRun ...string) error {
	value, err := json.Marshal(withPrefix(a.prefix, withoutNoFailure(conditions)))
	if err != nil {
		return fmt.Errorf("encode conditions: %w", err)
	}
	annotations := map[string]string{Annotation: string(value)}
	if line := summary(conditions); line != "" {
		annotations[SummaryAnnotation] = line
	}
	u := identity(o)
	u.SetResourceVersion(o.GetResourceVersion())
	u.SetAnnotations(annotations)
	_, err = resourceOf(a.client, a.resource, o).Namespace(o.GetNamespace()).
		Apply(ctx, o.GetName(), u, metav1.ApplyOptions{FieldManager: FieldManager, Force: true, DryRun: dryRun})
	return err
}

func (a *annotation) Clear(ctx context.Context, o *unstructured.Unstructured) error {
	return a.remove(ctx, o, "", Annotation, SummaryAnnotation, RemovedAnnotation)
}

// remove removes the keys if the object still has this version; an empty version matches any.
// It patches instead of applying, because another client may own the keys after copying the
// object. The patch cannot create an object.
func (a *annotation) remove(ctx context.Context, o *unstructured.Unstructured, version string, keys ...string) error {
	removed := map[string]any{}
	for _, key := range keys {
		removed[key] = nil
	}
	metadata := map[string]any{"uid": o.GetUID(), "annotations": removed}
	if version != "" {
		metadata["resourceVersion"] = version
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	_, err = resourceOf(a.client, a.resource, o).Namespace(o.GetNamespace()).
		Patch(ctx, o.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager})
	return err
}
