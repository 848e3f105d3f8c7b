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

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// plan is what is to be done about an object as it is known now.
type plan struct {
	object     *unstructured.Unstructured
	findings   []policy.Finding
	conditions []metav1.Condition
	sink       Sink // nil if no sink works
	old        Sink // another sink that still holds something, nil for none
	same       bool // sink holds these conditions already
}

func (p plan) writes() bool { return p.sink != nil && (!p.same || p.old != nil) }

// sync makes the object say what it should. A steady state writes nothing.
func (w *kindWriter) sync(ctx context.Context, key types.NamespacedName) error {
	p, err := w.plan(ctx, key)
	if err == nil && p.writes() {
		// The wait may be long. What is written is what is known after it.
		if err = w.wait(ctx); err == nil {
			p, err = w.plan(ctx, key)
		}
	}
	switch {
	case err != nil:
		return w.tellInstead(ctx, key, p, err)
	case p.object == nil:
		w.metrics.forget(w.item(key))
		w.teller.forget(key)
		return nil
	case p.writes():
		if err := w.write(ctx, key, p); err != nil {
			return w.tellInstead(ctx, key, p, err)
		}
	case p.sink != nil:
		w.metrics.written(w.item(key))
		w.teller.settled(key, p.object)
	case len(w.kind.Sinks) == 0:
		w.metrics.written(w.item(key)) // nothing is ever written
	}
	if p.sink != nil && p.sink.Name() == SubresourceSink {
		return nil // the status is seen without Events
	}
	return w.teller.tell(ctx, key, p.object, p.findings)
}

// tellInstead sends the Events of an object of which the server takes no
// conditions: what is stored of it may not be valid any more, or an admission
// plugin is against it. It returns err, and what else went wrong.
func (w *kindWriter) tellInstead(ctx context.Context, key types.NamespacedName, p plan, err error) error {
	if r := resultOf(err); r == invalid || r == refused {
		return errors.Join(err, w.teller.tell(ctx, key, p.object, p.findings))
	}
	return err
}

// plan looks at the object in the informer's store. It is nil if there is none.
// With an error of a sink, what else is known is there.
func (w *kindWriter) plan(ctx context.Context, key types.NamespacedName) (plan, error) {
	obj, exists, err := w.informer.GetStore().GetByKey(cacheKey(key))
	if err != nil || !exists {
		return plan{}, err
	}
	o, ok := obj.(*unstructured.Unstructured)
	if !ok || o.GetDeletionTimestamp() != nil {
		return plan{}, nil
	}
	p := plan{object: o, findings: w.kind.Diagnose(o)}
	p.conditions = Conditions(o.GetGeneration(), p.findings)
	w.metrics.describe(w.item(key), w.kind.Name, p.conditions)
	if p.sink, err = w.sinks.pick(ctx, o, stamp(p.conditions, w.stored(o))); err != nil {
		return p, err
	}
	if p.sink == nil {
		return p, nil
	}
	p.same = same(p.sink.Read(o), p.conditions)
	for _, s := range w.kind.Sinks {
		if s != p.sink && (len(s.Read(o)) > 0 || s.Marked(o)) && !w.sinks.look(s).forbidden {
			p.old = s
		}
	}
	return p, nil
}

// write stores the conditions of p. Where they are stored already, it removes
// those that another sink holds: the change made by the one brings the object
// back for the other.
func (w *kindWriter) write(ctx context.Context, key types.NamespacedName, p plan) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	sink, verb := p.sink, "write"
	var err error
	if !p.same {
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
		w.metrics.written(w.item(key))
		if !p.same {
			w.teller.owe(key)
		}
		return nil
	case unserved, forbidden:
		w.sinks.close(ctx, sink, err)
	}
	return fmt.Errorf("%s conditions of %s %v in the %s: %w", verb, w.kind.Name, key, sink.Name(), err)
}

// stored returns the conditions that o has, wherever they are.
func (w *kindWriter) stored(o *unstructured.Unstructured) []metav1.Condition {
	for _, s := range w.kind.Sinks {
		if conditions := s.Read(o); len(conditions) > 0 {
			return conditions
		}
	}
	return nil
}

// stamp gives conditions their times.
func stamp(conditions, old []metav1.Condition) []metav1.Condition {
	return carry(old, conditions, metav1.NewTime(time.Now()).Rfc3339Copy())
}

func cacheKey(key types.NamespacedName) string {
	if key.Namespace == "" {
		return key.Name
	}
	return key.String()
}
