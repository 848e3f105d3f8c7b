package status

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// plan is the work for the cached version of an object.
type plan struct {
	object     *unstructured.Unstructured
	findings   []policy.Finding
	audited    bool
	accepts    bool // there is nothing to say but that the policy is enforced as written
	conditions []metav1.Condition
	sink       Sink // nil if no sink is usable
	old        Sink // another sink that still stores our conditions, nil for none
	upToDate   bool // sink stores these conditions already
	sameSpec   bool // the stored conditions differ at most in what agents say
}

func (p plan) writes() bool { return p.sink != nil && (!p.upToDate || p.old != nil) }

// sync stores the conditions of an object. In a steady state it writes nothing.
func (w *kindWriter) sync(ctx context.Context, key types.NamespacedName) error {
	turn := w.accepted.turn(key)
	p, err := w.plan(ctx, key)
	if err == nil && p.writes() && !turn {
		if p.accepts {
			w.accepted.queue.Add(key)
			return nil
		}
		// The wait may be long, so plan again with the current cache.
		if err = w.wait(ctx); err == nil {
			p, err = w.plan(ctx, key)
		}
	}
	switch {
	case err != nil:
		return w.recordInstead(ctx, key, p, err)
	case p.object == nil:
		w.metrics.forget(w.item(key))
		w.events.forget(key)
		w.forgetEnforced(key)
		return nil
	case p.writes():
		if err := w.write(ctx, key, p); err != nil {
			return w.recordInstead(ctx, key, p, err)
		}
	case p.sink != nil:
		w.metrics.markDone(w.item(key))
		w.events.assumeRecorded(key, p.object)
	case len(w.kind.Sinks) == 0:
		w.metrics.markDone(w.item(key)) // nothing to write
	}
	if p.sink != nil && p.sink.Name() == SubresourceSink {
		return nil // authors see the status, and need no Events
	}
	return w.events.record(ctx, key, &p)
}

// recordInstead creates the Events of an object if the server refuses its conditions: the
// stored object may no longer validate, or an admission plugin refuses the write. It returns
// err joined with an error of the Events.
func (w *kindWriter) recordInstead(ctx context.Context, key types.NamespacedName, p plan, err error) error {
	if r := resultOf(err); r == invalid || r == refused {
		return errors.Join(err, w.events.record(ctx, key, &p))
	}
	return err
}

// plan returns the plan for the object in the informer's store, which is empty if there is no
// object. After an error of a sink, only the plan's sink is missing.
func (w *kindWriter) plan(ctx context.Context, key types.NamespacedName) (plan, error) {
	obj, exists, err := w.informer.GetStore().GetByKey(cacheKey(key))
	if err != nil || !exists {
		return plan{}, err
	}
	o, ok := obj.(*unstructured.Unstructured)
	if !ok || o.GetDeletionTimestamp() != nil {
		return plan{}, nil
	}
	p := plan{object: o, findings: w.kind.Diagnose(o), audited: w.audits(o)}
	stored := w.stored(o)
	p.conditions = Conditions(o.GetGeneration(), p.findings, p.audited)
	w.metrics.setConditions(w.item(key), w.kind.Name, p.conditions)
	if p.sink, err = w.sinks.pick(ctx, o, stamp(p.conditions, stored)); err != nil {
		return p, err
	}
	if p.sink == nil {
		return p, nil
	}
	p.conditions = append(p.conditions, w.enforced(key, &p, stored)...)
	p.accepts = onlyAccepts(p.conditions)
	if p.accepts && p.sink.Name() == AnnotationSink && !w.annotatesAccepted(o) {
		p.conditions = nil
	}
	p.upToDate = p.sink.Stores(o, p.conditions)
	p.sameSpec = sameConditions(ofSpec(stored), ofSpec(p.conditions))
	for _, s := range w.kind.Sinks {
		if s != p.sink && (len(s.Read(o)) > 0 || s.Marked(o)) && !w.sinks.get(s).forbidden {
			p.old = s
		}
	}
	return p, nil
}

// annotatesAccepted reports whether the annotation of a policy says that it is enforced as written.
func (w *kindWriter) annotatesAccepted(o *unstructured.Unstructured) bool {
	return w.cfg.Accepted != nil && w.cfg.Accepted(o, w.namespaceOf(o))
}

// write stores the conditions of p. If they are stored already, it removes those in the old
// sink: the update caused by the first write queues the object again for the second.
func (w *kindWriter) write(ctx context.Context, key types.NamespacedName, p plan) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	sink, verb := p.sink, "write"
	var err error
	if !p.upToDate {
		err = sink.Write(ctx, p.object, stamp(p.conditions, w.stored(p.object)))
	} else {
		sink, verb = p.old, "clear"
		err = sink.Clear(ctx, p.object)
	}
	r := resultOf(err)
	w.metrics.writes.WithLabelValues(w.kind.Name, sink.Name(), string(r)).Inc()
	switch r {
	case success:
		klog.FromContext(ctx).V(2).Info("Conditions stored", "kind", w.kind.Name, "policy", key.String(), "sink", sink.Name(), "verb", verb, "generation", p.object.GetGeneration())
		w.metrics.markDone(w.item(key))
		if !p.upToDate && !p.sameSpec {
			w.events.markPending(key)
		}
		return nil
	case unserved, forbidden:
		w.sinks.markUnusable(ctx, sink, err)
	}
	return fmt.Errorf("%s conditions of %s %v in the %s: %w", verb, w.kind.Name, key, sink.Name(), err)
}

// stored returns the conditions that o has, in any sink.
func (w *kindWriter) stored(o *unstructured.Unstructured) []metav1.Condition {
	for _, s := range w.kind.Sinks {
		if conditions := s.Read(o); len(conditions) > 0 {
			return conditions
		}
	}
	return nil
}

// stamp returns conditions with their transition times.
func stamp(conditions, old []metav1.Condition) []metav1.Condition {
	return withTimes(old, conditions, metav1.NewTime(time.Now()).Rfc3339Copy())
}

func cacheKey(key types.NamespacedName) string {
	if key.Namespace == "" {
		return key.Name
	}
	return key.String()
}
