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
	eventsclient "k8s.io/client-go/kubernetes/typed/events/v1"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

const (
	// eventReporter is who reports. The API wants a qualified name.
	eventReporter = "kube-network-policies.x-k8s.io/status-writer"
	// maxEvents is the most Events about one generation of a policy: they are
	// to be noticed, the conditions tell all.
	maxEvents = 5
	// maxEventName leaves room for the hash in the 253 bytes of a name.
	maxEventName = 230
	// maxReporterInstance and maxNote are limits of the API.
	maxReporterInstance = 128
	maxNote             = 1024
)

// edition is one spec of one object.
type edition struct {
	uid        types.UID
	generation int64
}

func editionOf(o *unstructured.Unstructured) edition {
	return edition{o.GetUID(), o.GetGeneration()}
}

// teller sends a Warning Event for each finding, once for each edition. A nil
// teller is silent.
type teller struct {
	client eventsclient.EventsV1Interface
	writer *Writer

	mu sync.Mutex
	// told is the edition that was told last, the zero edition while one is
	// still to be told. An object that is missing has not been looked at.
	told map[types.NamespacedName]edition
}

func newTeller(client eventsclient.EventsV1Interface, w *Writer) *teller {
	return &teller{client: client, writer: w, told: map[types.NamespacedName]edition{}}
}

// owe notes that o is to be told.
func (t *teller) owe(key types.NamespacedName) {
	if t != nil {
		t.mark(key, edition{})
	}
}

// settled notes that somebody, before this process, has told of o as it is,
// unless it is owed.
func (t *teller) settled(key types.NamespacedName, o *unstructured.Unstructured) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.told[key]; !ok {
		t.told[key] = editionOf(o)
	}
}

func (t *teller) forget(key types.NamespacedName) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.told, key)
}

func (t *teller) mark(key types.NamespacedName, e edition) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.told[key] = e
}

func (t *teller) isTold(key types.NamespacedName, e edition) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.told[key] == e
}

// tell sends what is not told yet. An error is worth another try; a server that
// refuses is counted, and no reason to hold anything up.
func (t *teller) tell(ctx context.Context, key types.NamespacedName, o *unstructured.Unstructured, findings []policy.Finding) error {
	if t == nil || t.isTold(key, editionOf(o)) {
		return nil
	}
	for _, e := range t.events(o, findings) {
		if err := t.send(ctx, e); err != nil {
			return fmt.Errorf("create event %s/%s: %w", e.Namespace, e.Name, err)
		}
	}
	t.mark(key, editionOf(o))
	return nil
}

func (t *teller) send(ctx context.Context, e *eventsv1.Event) error {
	if err := t.writer.wait(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err := t.client.Events(e.Namespace).Create(ctx, e, metav1.CreateOptions{FieldManager: FieldManager})
	if apierrors.IsAlreadyExists(err) {
		err = nil // of a writer that ended before it could remember
	}
	r := resultOf(err)
	t.writer.metrics.events.WithLabelValues(string(r)).Inc()
	switch r {
	case success:
		return nil
	case failed:
		return err
	}
	t.writer.tellError(ctx, err, "Events cannot be sent", "namespace", e.Namespace)
	return nil
}

// events returns the Events of findings. Their names follow from what they say,
// so that none is ever there twice.
func (t *teller) events(o *unstructured.Unstructured, findings []policy.Finding) []*eventsv1.Event {
	var events []*eventsv1.Event
	for i, f := range findings {
		if i == maxEvents {
			break
		}
		note := f.Field + ": " + f.Message
		if more := len(findings) - maxEvents; i == maxEvents-1 && more > 0 {
			note = fmt.Sprintf("%s. And %d more, see the conditions", cut(note, maxNote/2), more)
		}
		events = append(events, t.event(o, f.Reason, cut(note, maxNote)))
	}
	return events
}

func (t *teller) event(o *unstructured.Unstructured, reason, note string) *eventsv1.Event {
	namespace := o.GetNamespace()
	if namespace == "" {
		namespace = metav1.NamespaceDefault // where Events about cluster-scoped objects live
	}
	hash := fnv.New64a()
	fmt.Fprintf(hash, "%s %d %s %s", o.GetUID(), o.GetGeneration(), reason, note)
	name := o.GetName()
	return &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s.%016x", name[:min(len(name), maxEventName)], hash.Sum64())},
		EventTime:           metav1.NowMicro(),
		ReportingController: eventReporter,
		ReportingInstance:   cut(t.writer.cfg.Identity, maxReporterInstance),
		Action:              "Accept",
		Type:                corev1.EventTypeWarning,
		Reason:              reason,
		Note:                note,
		Regarding: corev1.ObjectReference{
			APIVersion: o.GetAPIVersion(), Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: name, UID: o.GetUID(),
		},
	}
}
