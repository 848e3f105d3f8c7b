package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// Source ports of held connections, below those that the kernel chooses for attempts. A provider that
// blocks a connection drops its end, too, and both the node and the destination still have the
// connection when an attempt would use the port again.
const (
	firstHeldPort = 10000
	heldPorts     = 20000
)

// Hold runs a command in each pod that holds the pod's connections. No program of agnhost can.
func (b *Backend) Hold(ctx context.Context, connections []netpol.Connection) (netpol.Held, error) {
	if !b.ownProber() {
		return nil, errors.ErrUnsupported
	}
	h := &held{sessions: make(map[string]*session), indices: bySource(connections), count: len(connections)}
	b.mu.Lock()
	for name := range h.indices {
		h.sessions[name] = startSession(b.runnerOf(name), name, prober{}, holdCommand)
	}
	first := b.held
	b.held += len(connections)
	b.mu.Unlock()
	_, err := h.ask(ctx, func(pod string) []attempt {
		attempts := b.attempts(connections, h.indices[pod])
		for i := range attempts {
			attempts[i].SourcePort = firstHeldPort + (first+attempts[i].ID)%heldPorts
		}
		return attempts
	})
	if err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// held are the commands that hold connections.
type held struct {
	sessions map[string]*session // by pod name
	indices  map[string][]int    // of the pod's connections, which are their IDs
	count    int
}

// Silent asks each pod about its connections. Times are measured there, so clocks need not agree.
func (h *held) Silent(ctx context.Context) ([]time.Duration, error) {
	results, err := h.ask(ctx, func(pod string) []attempt {
		var questions []attempt
		for _, i := range h.indices[pod] {
			questions = append(questions, attempt{ID: i})
		}
		return questions
	})
	if err != nil {
		return nil, err
	}
	silent := make([]time.Duration, h.count)
	for i, r := range results {
		silent[i] = time.Duration(r.Silent * float64(time.Millisecond))
	}
	return silent, nil
}

// ask passes lines to the commands and returns all answers. It is an error if one is missing or
// reports a failure.
func (h *held) ask(ctx context.Context, lines func(pod string) []attempt) (map[int]result, error) {
	var mu sync.Mutex // of all
	all := make(map[int]result)
	var group errgroup.Group
	for pod, s := range h.sessions {
		group.Go(func() error {
			results, err := s.try(ctx, lines(pod))
			for _, i := range slices.Sorted(maps.Keys(results)) {
				if r := results[i]; err == nil && r.Failure != "" {
					err = errors.New(r.Error)
				}
			}
			if err == nil && len(results) != len(h.indices[pod]) {
				err = errors.New("a destination has no address")
			}
			mu.Lock()
			defer mu.Unlock()
			maps.Copy(all, results)
			if err != nil {
				err = fmt.Errorf("%s: %w", pod, err)
			}
			return err
		})
	}
	return all, group.Wait()
}

// Close ends the commands, which closes the connections.
func (h *held) Close() {
	var wg sync.WaitGroup
	for _, s := range h.sessions {
		wg.Go(s.end)
	}
	wg.Wait()
}
