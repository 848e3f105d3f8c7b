package netpol

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func TestPlayRetriesUntilChangeIsEffective(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(func(c Connection, probe int) Outcome { return connectedIf(probe < 4 || !denied(c)) })
		result := (Runner{Backend: f}).Play(t.Context(), closedX(small))
		if !result.OK() {
			t.Error(result.Report(ASCII, false))
		}
		if got, want := result.Cells(), 16; got != want {
			t.Errorf("%d cells, want %d", got, want)
		}
	})
}

// Attempts of all cells together may take longer than a change may take to settle.
func TestPlayWaitsForAnswersOnASlowBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(func(c Connection, probe int) Outcome {
			time.Sleep(2 * defaultSettle)
			return connectedIf(c.Silence == patience*defaultSilence && (probe < 4 || !denied(c)))
		})
		result := (Runner{Backend: f}).Play(t.Context(), closedX(small))
		if !result.OK() {
			t.Error(result.Report(ASCII, false))
		}
	})
}

func TestPlayObservesTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// The baseline is probe 0 and the first look probe 1. From then on y/b is also blocked.
		f := newFake(func(c Connection, probe int) Outcome {
			return connectedIf(probe < 1 || !denied(c) && (probe < 2 || c.To != "y/b" || c.From == "y/b"))
		})
		result := (Runner{Backend: f}).Play(t.Context(), closedX(small))
		if result.OK() {
			t.Error("a server that became unreachable was not noticed")
		}
	})
}

func TestReportShowsLeak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(func(c Connection, probe int) Outcome {
			return connectedIf(probe == 0 || !denied(c) || strings.HasPrefix(c.From, "y/"))
		})
		var summary Summary
		result := (Runner{Backend: f}).Play(t.Context(), closedX(small))
		summary.Add(result)
		const want = `closed, step 1 deny: TCP 80 IPv4
       expected    observed
       x    y      x    y
       a b  a b    a b  a b
x/a    ✓ ✓  ✓ ✓    ✓ ✓  ✓ ✓
x/b    · ✓  ✓ ✓    · ✓  ✓ ✓
y/a    · ✓  ✓ ✓    ✗ ✓  ✓ ✓
y/b    · ✓  ✓ ✓    ✗ ✓  ✓ ✓
y/* -> x/a: connected, should be silently dropped
The first wrong cell is y/a -> x/a TCP 80 IPv4: connected, with these policies:
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: deny
  namespace: x
spec:
  podSelector:
    matchLabels:
      pod: a
  policyTypes:
  - Ingress
`
		if got := result.Report(Unicode, false); got != want {
			t.Errorf("got:\n%s\nwant:\n%s", got, want)
		}
		if summary.Failed != 1 || summary.Scenarios != 1 {
			t.Errorf("counted %+v", summary)
		}
	})
}

func TestRefusalsCountAsDenialWithoutSilentDrops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(func(c Connection, probe int) Outcome {
			if probe > 0 && denied(c) {
				return Refused
			}
			return Connected
		})
		if result := (Runner{Backend: f}).Play(t.Context(), closedX(small)); result.OK() {
			t.Error("a refused connection counts as silently dropped")
		}
		f.support.Features, f.probes = nil, 0
		if result := (Runner{Backend: f}).Play(t.Context(), closedX(small)); !result.OK() {
			t.Error(result.Report(ASCII, false))
		}
	})
}

func TestUnsupportedTrafficIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(func(c Connection, probe int) Outcome { return connectedIf(probe == 0 || !denied(c)) })
		model := small
		model.Protocols = append(slices.Clone(model.Protocols), corev1.ProtocolUDP)
		model.Vias = []Via{Direct, Service}
		result := (Runner{Backend: f}).Play(t.Context(), closedX(model))
		if !result.OK() || result.Cells() != 16 || result.LeftOut != 48 || !slices.Equal(result.Unsupported, []string{"UDP", "Services"}) {
			t.Errorf("OK %v, %d cells, %d left out, unsupported %v", result.OK(), result.Cells(), result.LeftOut, result.Unsupported)
		}
		model.HostNetwork = true
		result = (Runner{Backend: f}).Play(t.Context(), closedX(model))
		var summary Summary
		summary.Add(result)

		if len(result.Steps) != 0 || summary.Unsupported != 1 || summary.Scenarios != 0 {
			t.Errorf("steps %v, counted %+v", result.Steps, summary)
		}
	})
}

// An attempt that cannot be made, or a backend that fails, says nothing about the provider. Both are
// tried again until the time to settle is over.
func TestWithoutAResult(t *testing.T) {
	for name, outcome := range map[string]func(Connection, int) Outcome{
		"unobservable": func(c Connection, probe int) Outcome {
			if probe > 0 && c.From == "y/a" {
				return Unobservable
			}
			return connectedIf(probe == 0 || !denied(c))
		},
		"failing after wrong cells": func(_ Connection, probe int) Outcome {
			if probe > 1 {
				return failing
			}
			return Connected // also what is denied
		},
		"failing": func(_ Connection, probe int) Outcome {
			if probe > 0 {
				return failing
			}
			return Connected
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var summary Summary
				f := newFake(outcome)
				result := (Runner{Backend: f}).Play(t.Context(), closedX(small))
				summary.Add(result)
				if result.OK() || result.Wrong() || result.WrongCells() != 0 || f.probes < 10 {
					t.Errorf("OK %v, wrong %v, %d wrong cells, %d probes", result.OK(), result.Wrong(), result.WrongCells(), f.probes)
				}
				if text := summary.String(); !strings.Contains(text, "1 failed, 1 of them without a result") {
					t.Error(text)
				}
			})
		})
	}
	t.Run("failing for a while", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(func(c Connection, probe int) Outcome {
				if probe == 1 || probe == 2 {
					return failing
				}
				return connectedIf(probe == 0 || !denied(c))
			})
			if result := (Runner{Backend: f}).Play(t.Context(), closedX(small)); !result.OK() {
				t.Error(result.Report(ASCII, false))
			}
		})
	})
}

// refusing is a backend that refuses policies of one name.
type refusing struct {
	Backend
	name string
}

func (r refusing) Apply(ctx context.Context, state *State) error {
	for _, policy := range state.Policies {
		if policy.Name == r.name {
			return fmt.Errorf("policy %s: %w", policy.Name, ErrRefused)
		}
	}
	return r.Backend.Apply(ctx, state)
}

// What a cluster refuses is not supported if the scenario says that it may be, and otherwise fails.
func TestRefusedObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		scenario := closedX(small)
		scenario.Steps = append(scenario.Steps, Step{Name: "refused", Change: func(s *State) { s.Apply(NewPolicy("x", "strange")) }}, Step{})
		f := newFake(func(c Connection, probe int) Outcome { return connectedIf(probe == 0 || !denied(c)) })
		runner := Runner{Backend: refusing{f, "strange"}}
		if result := runner.Play(t.Context(), scenario); !errors.Is(result.Err, ErrRefused) {
			t.Errorf("error %v", result.Err)
		}

		f.probes = 0
		scenario.Refusable = true
		result := runner.Play(t.Context(), scenario)
		if !result.OK() || len(result.Steps) != 1 || result.LeftOut != 2*result.Cells() || len(result.Unsupported) != 1 || !strings.Contains(result.Unsupported[0], "policy strange") {
			t.Errorf("error %v, %d steps, %d cells, %d left out, unsupported %q", result.Err, len(result.Steps), result.Cells(), result.LeftOut, result.Unsupported)
		}
	})
}

// Expectations about traffic that the backend cannot observe are left out without an error.
func TestExpectationsOfUnsupportedTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(func(c Connection, probe int) Outcome { return connectedIf(probe == 0 || !denied(c)) })
		model := small
		model.Protocols = append(slices.Clone(model.Protocols), corev1.ProtocolSCTP)
		scenario := closedX(model)
		want := scenario.Steps[0].Want
		scenario.Steps[0].Want = func(r *Reachability) {
			want(r)
			r.For(SCTP(80)).ExpectPeer("y/*", "x/a", true)
		}
		if result := (Runner{Backend: f}).Play(t.Context(), scenario); !result.OK() || result.Cells() != 16 {
			t.Errorf("%d cells\n%s", result.Cells(), result.Report(ASCII, false))
		}
	})
}

func TestChurnNoticesShortLeaks(t *testing.T) {
	for _, leaky := range []bool{false, true} {
		t.Run(fmt.Sprintf("leaky %v", leaky), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				scenario := closedX(small)
				rounds := 0
				scenario.Steps[0].Churn = func(*State, int) { rounds++ }
				f := newFake(func(c Connection, probe int) Outcome {
					return connectedIf(probe == 0 || !denied(c) || leaky && probe == 5)
				})
				result := (Runner{Backend: f}).Play(t.Context(), scenario)
				if result.OK() == leaky {
					t.Errorf("leaky %v: OK %v", leaky, result.OK())
				}
				if !leaky && rounds != churnRounds {
					t.Errorf("%d rounds, want %d", rounds, churnRounds)
				}
			})
		})
	}
}
