package netpol

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Holder is a Backend that can also keep connections open while the cluster changes. With one, a
// Runner measures when the established connections end that a change denies.
type Holder interface {
	// Hold opens connections, and sends something on each every few milliseconds until they are
	// closed. A connection without an answer within its Silence is an error. errors.ErrUnsupported
	// means that this backend holds none.
	Hold(ctx context.Context, connections []Connection) (Held, error)
}

// Held are the open connections of a Holder.
type Held interface {
	// Silent returns how long ago the last answer came, in the order of the connections. It does
	// not matter whether a connection was also reset.
	Silent(ctx context.Context) ([]time.Duration, error)
	// Close closes the connections.
	Close()
}

// Limits of what is observed of established connections.
const (
	// maxHeld is how many connections of a change are held. More of them would delay the change
	// that they measure.
	maxHeld = 128
	// holdTimeout is how long opening one may take. The table before the change has it, so only a
	// busy machine needs long.
	holdTimeout = 30 * time.Second
	// endedAfter is how long a connection that has ended is silent. TCP repeats a lost segment
	// earlier, so a connection that a change only disturbs has not ended.
	endedAfter = time.Second
	// keptAfter is how long connections may take to end once every table is as expected. Where they
	// must end, they have the time to settle.
	keptAfter = 3 * time.Second
)

// Established says what became of established connections that a change denies. The API leaves
// open whether they end.
type Established struct {
	// Cut is how many have ended.
	Cut int
	// Kept are those that still got answers three seconds after every table was as expected, or
	// with MustEnd after another time to settle.
	Kept []Connection
	// MustEnd is set if the backend has the feature CutsEstablished, so that Kept must be empty.
	MustEnd bool
	// Took is how long after the change the last one that ended still got an answer.
	Took time.Duration
}

// Differs reports whether connections were kept that must end.
func (e Established) Differs() bool { return e.MustEnd && len(e.Kept) > 0 }

// String names the connections that were kept, for example "2 of 40 established connections were
// not cut: x/a -> y/b TCP 80 IPv4, x/b -> y/b TCP 80 IPv4".
func (e Established) String() string {
	var kept []string
	for _, c := range e.Kept {
		kept = append(kept, c.String())
	}
	return fmt.Sprintf("%d of %d established connections were not cut: %s", len(kept), e.Cut+len(kept), strings.Join(kept, ", "))
}

// holding are connections that a step denies.
type holding struct {
	connections []Connection
	held        Held
}

// hold opens connections that the step denies. It returns nil if there are none, or if the backend
// cannot hold any.
func (p *play) hold(ctx context.Context, before *State, step Step) (*holding, error) {
	holder, ok := p.runner.Backend.(Holder)
	if !ok {
		return nil, nil
	}
	connections := p.denies(before, step)
	if len(connections) == 0 {
		return nil, nil
	}
	held, err := holder.Hold(ctx, connections)
	if errors.Is(err, errors.ErrUnsupported) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("hold connections: %w", err)
	}
	return &holding{connections, held}, nil
}

func (h *holding) close() {
	if h != nil {
		h.held.Close()
	}
}

// denies returns the connections that the tables before the step have and those after it lack, or
// an even selection if there are too many. Their ends are in both states, with the same addresses.
func (p *play) denies(before *State, step Step) []Connection {
	if slices.ContainsFunc(p.state.Pods, func(pod *corev1.Pod) bool { return IsUp(pod) && len(pod.Status.PodIPs) == 0 }) {
		return nil // the expectations may need the addresses that Apply will assign
	}
	endpoints := slices.DeleteFunc(p.state.Endpoints(), func(name string) bool {
		return !slices.Contains(before.Endpoints(), name) || !slices.Equal(before.addrs(name), p.state.addrs(name))
	})
	want := step.reachability(p.state, p.scenario.Model.Traffic(), p.traffic)
	var denied []Connection
	for _, t := range p.traffic {
		if t.Protocol != corev1.ProtocolTCP && t.Protocol != corev1.ProtocolUDP {
			continue
		}
		for _, from := range endpoints {
			for _, to := range endpoints {
				if p.want.tables[t].Get(from, to) && !want.tables[t].Get(from, to) {
					denied = append(denied, Connection{From: from, To: to, Traffic: t, Silence: holdTimeout})
				}
			}
		}
	}
	return spread(denied, maxHeld)
}

// spread returns at most n elements, at equal distances.
func spread[T any](all []T, n int) []T {
	if len(all) <= n {
		return all
	}
	some := make([]T, n)
	for i := range some {
		some[i] = all[i*len(all)/n]
	}
	return some
}

// awaitEnds waits until the connections have ended or must count as kept.
func (p *play) awaitEnds(ctx context.Context, h *holding, applied time.Time) (Established, error) {
	mustEnd := slices.Contains(p.runner.Backend.Supports().Features, CutsEstablished)
	limit := keptAfter
	if mustEnd {
		limit = cmp.Or(p.runner.Settle, defaultSettle)
	}
	ended, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		silent, err := h.held.Silent(ctx)
		if err != nil {
			return Established{}, fmt.Errorf("held connections: %w", err)
		}
		if len(silent) != len(h.connections) {
			return Established{}, fmt.Errorf("held connections: %d times of %d", len(silent), len(h.connections))
		}
		now := time.Now()
		seen := Established{MustEnd: mustEnd}
		for i, since := range silent {
			if since < endedAfter {
				seen.Kept = append(seen.Kept, h.connections[i])
				continue
			}
			seen.Cut++
			seen.Took = max(seen.Took, now.Sub(applied)-since)
		}
		switch {
		case ctx.Err() != nil:
			return Established{}, ctx.Err()
		case len(seen.Kept) == 0 || ended.Err() != nil:
			return seen, nil
		}
		pause(ended, endedAfter/10)
	}
}

// Revocation says how long changes of one kind took until the last established connection was gone
// that they deny. A time begins like those of Convergence, and ends with the last answer. The times
// are of changes after which none was kept.
type Revocation struct {
	Change    Change
	Changes   int // that denied connections which were held
	Cut, Kept int // connections
	Times

	gone []time.Duration // what Times are of
}

// String returns, for example, "policy: established connections gone after 9 ms (p50), 41 ms (p95),
// 52 ms (p99), 60 ms (max), changes: 120, cut: 2310, kept: 0".
func (r Revocation) String() string {
	gone := ""
	if len(r.gone) > 0 {
		gone = fmt.Sprintf(" gone after %s", r.Times)
	}
	return fmt.Sprintf("%s: established connections%s, changes: %d, cut: %d, kept: %d", r.Change, gone, r.Changes, r.Cut, r.Kept)
}

// Revocation returns the times by kind of change, without the kinds that denied no connection that
// was held, and without times on a busy machine.
func (s *Summary) Revocation() []Revocation {
	var all []Revocation
	for _, kind := range allChanges {
		if r := s.revoked[kind]; r != nil {
			r := *r
			if s.Control().Busy() != "" {
				r.gone = nil
			}
			r.Times = timesOf(r.gone)
			all = append(all, r)
		}
	}
	return all
}

// addEstablished counts what became of the connections of one change.
func (s *Summary) addEstablished(change Change, e Established) {
	if e.Cut+len(e.Kept) == 0 {
		return
	}
	if s.revoked == nil {
		s.revoked = make(map[Change]*Revocation)
	}
	if s.revoked[change] == nil {
		s.revoked[change] = &Revocation{Change: change}
	}
	r := s.revoked[change]
	r.Changes++
	r.Cut += e.Cut
	r.Kept += len(e.Kept)
	if len(e.Kept) == 0 {
		r.gone = append(r.gone, e.Took)
	}
}
