package netpol

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Timed is a Backend that measures connections.
type Timed interface {
	// Time makes connections one after the other, so that none waits for another, and returns how
	// long each took to its first answer. A connection without an answer within its Silence is an
	// error. errors.ErrUnsupported means that this backend measures none.
	Time(ctx context.Context, connections []Connection) ([]time.Duration, error)
}

// Latency is how long new TCP connections took to their first answer.
type Latency struct {
	Connections int   // of each kind
	Free        Times // between pods that no policy selects: the control
	Selected    Times // between pods that policies select, whose rules allow the connection
}

// String returns, for example, "new TCP connections answered after 0.4 ms (p50), ... without policies,
// 0.7 ms (p50), ... with policies, connections: 720 each".
func (l Latency) String() string {
	return fmt.Sprintf("new TCP connections answered after %s without policies, %s with policies, connections: %d each", l.Free, l.Selected, l.Connections)
}

// Limits of what is measured.
const (
	// latencyRounds is how often policies are applied and deleted. Providers may remember what they
	// have decided, so a connection counts once for each.
	latencyRounds = 5
	// timedSilence lets a client repeat a first packet that was lost.
	timedSilence = 5 * time.Second
)

// MeasureLatency measures new connections between the nine pods of the zero Model, each pair on two
// ports, with policies and without in turn. It returns nil if the backend is not Timed.
func (r Runner) MeasureLatency(ctx context.Context) (*Latency, error) {
	timed, ok := r.Backend.(Timed)
	if !ok {
		return nil, nil
	}
	support := r.Backend.Supports()
	model := Model{Nodes: min(2, support.Nodes), Families: support.Families[:1]}
	p := &play{runner: r, state: model.State()}
	datagrams := UDP(80).Over(support.Families[0])
	measure := func(selected bool) ([]time.Duration, error) {
		p.state.withoutPolicies()
		if selected {
			p.state.Apply(tcpOnly(p.state)...)
		}
		if err := r.Backend.Apply(ctx, p.state); err != nil {
			return nil, err
		}
		// Tables of what is not measured show whether the change is effective.
		want := NewReachability(p.state, []Traffic{datagrams})
		want.ExpectAllIngress("*", !selected)
		seen, err := p.observe(ctx, want)
		if err == nil && anyDiffers(seen.comparisons) {
			err = fmt.Errorf("%s is not as expected", datagrams)
		}
		if err != nil {
			return nil, err
		}
		return timed.Time(ctx, tcpConnections(p.state, support.Families[0]))
	}
	var free, selected []time.Duration
	for range latencyRounds {
		took, err := measure(false)
		if errors.Is(err, errors.ErrUnsupported) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("measure latency without policies: %w", err)
		}
		free = append(free, took...)
		if took, err = measure(true); err != nil {
			return nil, fmt.Errorf("measure latency with policies: %w", err)
		}
		selected = append(selected, took...)
	}
	return &Latency{len(free), timesOf(free), timesOf(selected)}, nil
}

// tcpOnly returns a policy for each namespace that allows TCP from pods everywhere, by their labels.
func tcpOnly(s *State) []Policy {
	var policies []Policy
	for _, namespace := range s.Namespaces {
		policies = append(policies, NewPolicy(namespace.Name, "tcp", Ingress(From(Pods("pod").InNamespaces("ns")), At(TCP(80), TCP(81)))))
	}
	return policies
}

// tcpConnections returns a connection for each pair of different pods on each port.
func tcpConnections(s *State, family corev1.IPFamily) []Connection {
	var all []Connection
	for _, port := range s.Ports {
		for _, from := range s.Endpoints() {
			for _, to := range s.Endpoints() {
				if from != to {
					all = append(all, Connection{From: from, To: to, Traffic: TCP(port).Over(family), Silence: timedSilence})
				}
			}
		}
	}
	return all
}
