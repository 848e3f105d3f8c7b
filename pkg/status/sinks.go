package status

import (
	"context"
	"errors"
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
	s := &sinks{kind: k, metrics: m, state: map[string]*sinkState{}}
	for _, sink := range k.Sinks {
		s.state[sink.Name()] = &sinkState{}
	}
	return s
}

// pick returns the first sink that works, nil if none does. One that was not
// tried yet, or not for a while, is probed with o. An error means that it could
// not be told.
func (s *sinks) pick(ctx context.Context, o *unstructured.Unstructured, conditions []metav1.Condition) (Sink, error) {
	s.mu.Lock() // one probe at a time: the others wait for its answer
	defer s.mu.Unlock()
	for _, sink := range s.kind.Sinks {
		state := s.state[sink.Name()]
		switch {
		case state.open:
			return sink, nil
		case time.Now().Before(state.till):
			continue
		}
		err := s.probe(ctx, sink, o, conditions)
		switch resultOf(err) {
		case success:
			*state = sinkState{open: true}
			s.metrics.usable.WithLabelValues(s.kind.Name, sink.Name()).Set(1)
			klog.FromContext(ctx).Info("Conditions can be stored", "kind", s.kind.Name, "sink", sink.Name())
			return sink, nil
		case unserved, forbidden:
			s.closeLocked(ctx, sink, err)
		default:
			return nil, err
		}
	}
	return nil, nil
}

func (s *sinks) probe(ctx context.Context, sink Sink, o *unstructured.Unstructured, conditions []metav1.Condition) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return sink.Probe(ctx, o, conditions)
}

// close gives up a sink for a while. Only the first time in a row is logged.
func (s *sinks) close(ctx context.Context, sink Sink, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closeLocked(ctx, sink, err)
}

func (s *sinks) closeLocked(ctx context.Context, sink Sink, err error) {
	state := s.state[sink.Name()]
	state.open, state.forbidden = false, resultOf(err) == forbidden
	state.till = time.Now().Add(reprobe)
	s.metrics.usable.WithLabelValues(s.kind.Name, sink.Name()).Set(0)
	if state.told {
		return
	}
	state.told = true
	logger := klog.FromContext(ctx)
	if errors.Is(err, ErrUnserved) {
		logger.Info("Conditions cannot be stored in this way on this server", "kind", s.kind.Name, "sink", sink.Name(), "reason", err.Error(), "retryAfter", reprobe)
		return
	}
	logger.Error(err, "Conditions cannot be stored in this way", "kind", s.kind.Name, "sink", sink.Name(), "retryAfter", reprobe)
}

// isForbidden tells whether a sink was found closed for lack of rights.
func (s *sinks) isForbidden(sink Sink) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state[sink.Name()].forbidden
}
