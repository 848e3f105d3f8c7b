package status

import (
	"context"
	"fmt"
	"hash/fnv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/apiclient"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/objectname"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

const (
	// eventReporter is the reporting controller. The API wants a qualified name.
	eventReporter = "kube-network-policies.x-k8s.io/status-writer"
	// maxEvents is the maximum number of Events about one generation of a policy.
	// The conditions list all problems.
	maxEvents = 5
	// maxReporterInstance and maxNote are limits of the API.
	maxReporterInstance = 128
	maxNote             = 1024
)

// revision identifies one spec of one object.
type revision struct {
	uid        types.UID
	generation int64
}

func revisionOf(o *unstructured.Unstructured) revision {
	return revision{o.GetUID(), o.GetGeneration()}
}

// eventRecorder creates a Warning Event for each finding, and a Normal one if the policy is audited,
// once for each revision.
// A nil eventRecorder creates none.
type eventRecorder struct {
	writer *Writer

	mu sync.Mutex
	// recorded holds the revision with the latest Events, or the zero revision while Events
	// are pending. Objects that were not seen yet have no entry.
	recorded map[types.NamespacedName]revision
}

func newEventRecorder(w *Writer) *eventRecorder {
	return &eventRecorder{writer: w, recorded: map[types.NamespacedName]revision{}}
}

// markPending records that Events of the object must be created.
func (r *eventRecorder) markPending(key types.NamespacedName) {
	if r != nil {
		r.mark(key, revision{})
	}
}

// assumeRecorded records that an earlier process has created the Events of o, unless they are
// pending.
func (r *eventRecorder) assumeRecorded(key types.NamespacedName, o *unstructured.Unstructured) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.recorded[key]; !ok {
		r.recorded[key] = revisionOf(o)
	}
}

func (r *eventRecorder) forget(key types.NamespacedName) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.recorded, key)
}

func (r *eventRecorder) mark(key types.NamespacedName, rev revision) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recorded[key] = rev
}

func (r *eventRecorder) isRecorded(key types.NamespacedName, rev revision) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.recorded[key] == rev
}

// record creates the missing Events of p's object. It returns an error if a retry may help. Refused
// Events are counted and not retried.
func (r *eventRecorder) record(ctx context.Context, key types.NamespacedName, p *plan) error {
	o := p.object
	if r == nil || r.isRecorded(key, revisionOf(o)) {
		return nil
	}
	events := r.events(o, p.findings)
	if p.audited {
		events = append(events, r.auditedEvent(o))
	}
	for _, e := range events {
		if err := r.create(ctx, e); err != nil {
			return fmt.Errorf("create event %s/%s: %w", e.Namespace, e.Name, err)
		}
	}
	r.mark(key, revisionOf(o))
	return nil
}

func (r *eventRecorder) create(ctx context.Context, e *eventsv1.Event) error {
	if err := r.writer.wait(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err := apiclient.Events(r.writer.cfg.Events, e.Namespace).Create(ctx, e, metav1.CreateOptions{FieldManager: FieldManager})
	if apierrors.IsAlreadyExists(err) {
		err = nil // created by a writer that ended before it could record it
	}
	switch resultOf(err) {
	case success:
		return nil
	case serverError, failed:
		return err
	}
	r.writer.logError(ctx, err, "Cannot create events", "namespace", e.Namespace)
	return nil
}

// events returns the Events of findings. Their names are hashes of their content,
// so that no Event is created twice.
func (r *eventRecorder) events(o *unstructured.Unstructured, findings []policy.Finding) []*eventsv1.Event {
	var events []*eventsv1.Event
	for i, f := range findings {
		if i == maxEvents {
			break
		}
		note := f.Field.String() + ": " + f.Message
		if more := len(findings) - maxEvents; i == maxEvents-1 && more > 0 {
			note = fmt.Sprintf("%s. And %d more, see the conditions", truncate(note, maxNote/2), more)
		}
		events = append(events, r.event(o, corev1.EventTypeWarning, f.Reason, truncate(note, maxNote), ""))
	}
	return events
}

// auditedEvent returns the Event of a policy that has become audited. The version of the object is
// part of its name: a policy may be enforced and audited again without a new generation.
func (r *eventRecorder) auditedEvent(o *unstructured.Unstructured) *eventsv1.Event {
	return r.event(o, corev1.EventTypeNormal, Audit, auditMessage, o.GetResourceVersion())
}

// event returns an Event. Its name is a hash of what it says and of version.
func (r *eventRecorder) event(o *unstructured.Unstructured, eventType, reason, note, version string) *eventsv1.Event {
	namespace := o.GetNamespace()
	if namespace == "" {
		namespace = metav1.NamespaceDefault // where Events about cluster-scoped objects live
	}
	hash := fnv.New64a()
	fmt.Fprintf(hash, "%s %d %s %s", o.GetUID(), o.GetGeneration(), reason, note)
	if version != "" {
		fmt.Fprintf(hash, " %s", version)
	}
	name := objectname.Valid(o.GetName(), fmt.Sprintf(".%016x", hash.Sum64()))
	return &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: namespace, Name: name},
		EventTime:           metav1.NowMicro(),
		ReportingController: eventReporter,
		ReportingInstance:   truncate(r.writer.cfg.Identity, maxReporterInstance),
		Action:              "Accept",
		Type:                eventType,
		Reason:              reason,
		Note:                note,
		Regarding: corev1.ObjectReference{
			APIVersion: o.GetAPIVersion(), Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(),
		},
	}
}
