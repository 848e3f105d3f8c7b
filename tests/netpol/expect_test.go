package netpol

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// twoPods is a state with two pods and a policy.
func twoPods() *State {
	state := small.State()
	state.Apply(NewPolicy("x", "deny", Subject("pod=a"), DenyIngress()))
	return state
}

func expectation(from, to string, allowed bool) Expectation {
	return Expectation{Connection{From: from, To: to, Traffic: TCP(80).Over(corev1.IPv4Protocol)}, allowed}
}

func TestExpect(t *testing.T) {
	expected := []Expectation{expectation("x/b", "x/a", false), expectation("x/b", "y/a", true)}
	for _, c := range []struct {
		name    string
		support []Feature
		outcome func(Connection, int) Outcome // of the attempts with policies, from 0
		want    []Outcome
		probes  int // with policies
	}{
		{"as expected", nil, func(c Connection, _ int) Outcome { return connectedIf(!denied(c)) }, []Outcome{TimedOut, Connected}, 1},
		{"denied too little", nil, func(Connection, int) Outcome { return Connected }, []Outcome{Connected, Connected}, 1},
		{"denied too much", nil, func(Connection, int) Outcome { return TimedOut }, []Outcome{TimedOut, TimedOut}, 4},
		{"a late answer", nil, func(c Connection, probe int) Outcome { return connectedIf(!denied(c) && probe > 0) }, []Outcome{TimedOut, Connected}, 2},
		{"refused", nil, func(c Connection, _ int) Outcome {
			if denied(c) {
				return Refused
			}
			return Connected
		}, []Outcome{TimedOut, Connected}, 1},
		{"refused, and not dropped", []Feature{SilentDrops}, func(Connection, int) Outcome { return Refused }, []Outcome{Refused, Refused}, 4},
		{"not observed", nil, func(Connection, int) Outcome { return Unobservable }, []Outcome{Unobservable, Unobservable}, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake(nil)
			f.support.Features = c.support
			f.outcome = func(connection Connection, probe int) Outcome {
				if probe == 0 {
					return Connected
				}
				return c.outcome(connection, probe-1)
			}
			got, err := Runner{Backend: f, Settle: 1}.Expect(t.Context(), twoPods(), expected)
			if err != nil || !slices.Equal(got, c.want) || f.probes != 1+c.probes {
				t.Errorf("got %v after %d attempts with error %v, want %v after %d", got, f.probes-1, err, c.want, c.probes)
			}
			if len(f.applied) != 2 || len(f.applied[0].Policies) != 0 || len(f.applied[1].Policies) != 1 {
				t.Errorf("%d states were applied, want one without and one with the policy", len(f.applied))
			}
			if pods := f.applied[1].Pods; len(pods[0].Status.PodIPs) == 0 {
				t.Error("applying the policies recreates pods")
			}
		})
	}
}

func TestExpectWaitsUntilPoliciesAreEffective(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var started time.Time
		f := newFake(func(_ Connection, probe int) Outcome {
			if probe == 0 {
				started = time.Now()
			} else if waited := time.Since(started); waited != time.Minute {
				t.Errorf("tried after %v", waited)
			}
			return Connected
		})
		if _, err := (Runner{Backend: f, Settle: time.Minute}).Expect(t.Context(), twoPods(), []Expectation{expectation("x/b", "y/a", true)}); err != nil {
			t.Fatal(err)
		}
	})
}

func TestExpectReturnsErrors(t *testing.T) {
	expected := []Expectation{expectation("x/b", "x/a", false)}
	connected := func(Connection, int) Outcome { return Connected }
	t.Run("no connection without policies", func(t *testing.T) {
		f := newFake(func(Connection, int) Outcome { return TimedOut })
		_, err := Runner{Backend: f, Settle: 1}.Expect(t.Context(), twoPods(), expected)
		if want := "without any of them not everything connects: x/b -> x/a TCP 80 IPv4: timed out"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	})
	t.Run("a kind that the cluster does not have", func(t *testing.T) {
		state := twoPods()
		state.Apply(NewAdminNetworkPolicy("p", 1))
		_, err := Runner{Backend: newFake(connected), Settle: 1}.Expect(t.Context(), state, expected)
		if want := "need AdminNetworkPolicy and BaselineAdminNetworkPolicy"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	})
	t.Run("the end", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		f := newFake(func(_ Connection, probe int) Outcome {
			if probe > 0 {
				cancel()
			}
			return Connected
		})
		if _, err := (Runner{Backend: f, Settle: 1}).Expect(ctx, twoPods(), expected); err == nil {
			t.Error("no error")
		}
	})
}
