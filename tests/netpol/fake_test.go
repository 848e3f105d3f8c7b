package netpol

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// fake is a cluster in which the test decides what connects.
type fake struct {
	support Support
	applied []*State
	probes  int
	// outcome returns the outcome of an attempt. probe is the number of earlier calls of
	// Probe.
	outcome func(c Connection, probe int) Outcome
}

func newFake(outcome func(c Connection, probe int) Outcome) *fake {
	return &fake{
		support: Support{
			Protocols: []corev1.Protocol{corev1.ProtocolTCP},
			Families:  []corev1.IPFamily{corev1.IPv4Protocol},
			Features:  []Feature{SilentDrops},
			Nodes:     2,
		},
		outcome: outcome,
	}
}

// failing is the outcome with which Probe fails.
const failing Outcome = 255

func (f *fake) Supports() Support { return f.support }

func (f *fake) Apply(_ context.Context, state *State) error {
	addr := netip.MustParseAddr("10.0.0.1")
	for i := range state.Pods {
		state.Pods[i] = state.Pods[i].DeepCopy()
		state.Pods[i].Status.PodIPs = []corev1.PodIP{{IP: addr.String()}}
		addr = addr.Next()
	}
	f.applied = append(f.applied, state.Clone())
	return nil
}

func (f *fake) Probe(_ context.Context, connections []Connection) ([]Outcome, error) {
	outcomes := make([]Outcome, len(connections))
	for i, c := range connections {
		outcomes[i] = f.outcome(c, f.probes)
	}
	f.probes++
	if slices.Contains(outcomes, failing) {
		return nil, errors.New("no pod answers")
	}
	return outcomes, nil
}

func (f *fake) Close() error { return nil }

// small is a model with four pods and one table.
var small = Model{Namespaces: []string{"x", "y"}, Pods: []string{"a", "b"}, Ports: []int32{80},
	Protocols: []corev1.Protocol{corev1.ProtocolTCP}, Families: []corev1.IPFamily{corev1.IPv4Protocol}}

// closedX is a scenario in which nothing reaches x/a.
func closedX(model Model) Scenario {
	return Scenario{Name: "closed", Model: model, Steps: []Step{{
		Name:   "deny",
		Change: func(s *State) { s.Apply(NewPolicy("x", "deny", Subject("pod=a"), DenyIngress())) },
		Want:   func(r *Reachability) { r.ExpectAllIngress("x/a", false) },
	}}}
}

// denied reports whether closedX denies a connection.
func denied(c Connection) bool { return c.To == "x/a" && c.From != "x/a" }

// connectedIf returns Connected or TimedOut.
func connectedIf(connected bool) Outcome { return outcomeOf(connected) }

func TestPlayStopsIfBaselineDoesNotConnect(t *testing.T) {
	f := newFake(func(c Connection, _ int) Outcome { return connectedIf(c.To != "y/b") })
	result := (Runner{Backend: f, Settle: 1}).Play(t.Context(), closedX(small))
	if result.Err == nil || len(result.Steps) != 0 || result.OK() {
		t.Errorf("the scenario did not end: %+v", result)
	}
	for _, state := range f.applied {
		if len(state.Policies) != 0 {
			t.Error("a policy was applied")
		}
	}
}
