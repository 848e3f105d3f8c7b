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

// sinks knows which of a kind's sinks work.
type sinks struct {
	kind    Kind
	metrics *metrics
	turn    chan struct{} // holds one for who picks: others wait for its probe

	mu    sync.Mutex
	state map[string]*sinkState // by name
}

type sinkState struct {
	open bool      // the probe found that it works
	till time.Time // until when a closed one is left alone
	told bool      // the log has said that it is closed
	// forbidden tells why it is closed: nothing can be removed either.
	forbidden bool
}

func newSinks(k Kind, m *metrics) *sinks {
	s := &sinks{kind: k, metrics: m, turn: make(chan struct{}, 1), state: map[string]*sinkState{}}
	for _, sink := range k.Sinks {
		s.state[sink.Name()] = &sinkState{}
	}
	return s
}

// pick returns the first sink that works, nil if none does. One that was not
// tried yet, or not for a while, is probed with o. An error means that it could
// not be told.
func (s *sinks) pick(ctx context.Context, o *unstructured.Unstructured, conditions []metav1.Condition) (Sink, error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for _, sink := range s.kind.Sinks {
		state := s.look(sink)
		switch {
		case state.open:
			return sink, nil
		case time.Now().Before(state.till):
			continue
		}
		err := s.probe(ctx, sink, o, conditions)
		switch resultOf(err) {
		case success:
			s.open(ctx, sink)
			return sink, nil
		case unserved, forbidden:
			s.close(ctx, sink, err)
		default:
			return nil, fmt.Errorf("probe the %s with %s %s/%s: %w", sink.Name(), s.kind.Name, o.GetNamespace(), o.GetName(), err)
		}
	}
	return nil, nil
}

// look returns what is known of a sink.
func (s *sinks) look(sink Sink) sinkState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *s.state[sink.Name()]
}

func (s *sinks) probe(ctx context.Context, sink Sink, o *unstructured.Unstructured, conditions []metav1.Condition) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return sink.Probe(ctx, o, conditions)
}

func (s *sinks) open(ctx context.Context, sink Sink) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*s.state[sink.Name()] = sinkState{open: true}
	s.metrics.usable.WithLabelValues(s.kind.Name, sink.Name()).Set(1)
	klog.FromContext(ctx).Info("Conditions can be stored", "kind", s.kind.Name, "sink", sink.Name())
}

// close gives up a sink for a while. Only the first time in a row is logged.
func (s *sinks) close(ctx context.Context, sink Sink, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := s.state[sink.Name()]
	told := state.told
	*state = sinkState{till: time.Now().Add(reprobe), told: true, forbidden: resultOf(err) == forbidden}
	s.metrics.usable.WithLabelValues(s.kind.Name, sink.Name()).Set(0)
	switch logger := klog.FromContext(ctx); {
	case told:
	case errors.Is(err, ErrUnserved):
		logger.Info("Conditions cannot be stored in this way on this server", "kind", s.kind.Name, "sink", sink.Name(), "reason", err.Error(), "retryAfter", reprobe)
	default:
		logger.Error(err, "Conditions cannot be stored in this way", "kind", s.kind.Name, "sink", sink.Name(), "retryAfter", reprobe)
	}
}
