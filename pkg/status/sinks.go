package status

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/klog/v2"
)

// sinks keeps track of which of a kind's sinks are usable.
type sinks struct {
	kind    Kind
	metrics *metrics
	picking chan struct{} // a lock of capacity 1: one worker probes while others wait

	mu    sync.Mutex
	state map[string]*sinkState // by name
}

type sinkState struct {
	usable  bool      // the probe succeeded
	probeAt time.Time // when an unusable sink is probed again
	logged  bool      // it was logged that the sink is unusable
	// forbidden is set if the writer has no right to use the sink, so that it cannot remove
	// conditions either.
	forbidden bool
}

func newSinks(k Kind, m *metrics) *sinks {
	s := &sinks{kind: k, metrics: m, picking: make(chan struct{}, 1), state: map[string]*sinkState{}}
	for _, sink := range k.Sinks {
		s.state[sink.Name()] = &sinkState{}
	}
	return s
}

// pick returns the first usable sink, nil if there is none. It probes sinks with o if they
// were never probed or their next probe is due. An error means that a probe was inconclusive.
func (s *sinks) pick(ctx context.Context, o *unstructured.Unstructured, conditions []metav1.Condition) (Sink, error) {
	select {
	case s.picking <- struct{}{}:
		defer func() { <-s.picking }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for _, sink := range s.kind.Sinks {
		state := s.get(sink)
		switch {
		case state.usable:
			return sink, nil
		case time.Now().Before(state.probeAt):
			continue
		}
		err := s.probe(ctx, sink, o, conditions)
		switch resultOf(err) {
		case success:
			s.markUsable(ctx, sink)
			return sink, nil
		case unserved, forbidden:
			s.markUnusable(ctx, sink, err)
		default:
			return nil, fmt.Errorf("probe the %s with %s %s/%s: %w", sink.Name(), s.kind.Name, o.GetNamespace(), o.GetName(), err)
		}
	}
	return nil, nil
}

// get returns the state of a sink.
func (s *sinks) get(sink Sink) sinkState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *s.state[sink.Name()]
}

func (s *sinks) probe(ctx context.Context, sink Sink, o *unstructured.Unstructured, conditions []metav1.Condition) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return sink.Probe(ctx, o, conditions)
}

func (s *sinks) markUsable(ctx context.Context, sink Sink) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*s.state[sink.Name()] = sinkState{usable: true}
	s.metrics.usable.WithLabelValues(s.kind.Name, sink.Name()).Set(1)
	klog.FromContext(ctx).Info("Storing conditions", "kind", s.kind.Name, "sink", sink.Name())
}

// markUnusable stops the use of a sink until its next probe. Only the first of
// several failures in a row is logged.
func (s *sinks) markUnusable(ctx context.Context, sink Sink, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := s.state[sink.Name()]
	logged := state.logged
	*state = sinkState{probeAt: time.Now().Add(reprobe), logged: true, forbidden: resultOf(err) == forbidden}
	s.metrics.usable.WithLabelValues(s.kind.Name, sink.Name()).Set(0)
	switch logger := klog.FromContext(ctx); {
	case logged:
	case errors.Is(err, ErrNotServed):
		logger.Info("Sink cannot be used on this server", "kind", s.kind.Name, "sink", sink.Name(), "reason", err.Error(), "retryAfter", reprobe)
	default:
		logger.Error(err, "Sink cannot be used", "kind", s.kind.Name, "sink", sink.Name(), "retryAfter", reprobe)
	}
}
