package netpol

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The time of a change ends when the attempts begin that find every table right.
func TestConvergence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var summary Summary
		for _, delay := range []time.Duration{0, 300 * time.Millisecond, 2 * time.Second} {
			var applied time.Time // set by the first attempt that follows the baseline
			f := newFake(func(c Connection, probe int) Outcome {
				if probe > 0 && applied.IsZero() {
					applied = time.Now()
				}
				return connectedIf(!denied(c) || probe == 0 || time.Since(applied) < delay)
			})
			summary.Add((Runner{Backend: f}).Play(t.Context(), closedX(small)))
		}

		got := summary.Convergence()

		const round = retryInterval
		if len(got) != 1 || got[0].Change != ChangePolicy || got[0].Changes != 3 ||
			got[0].P50 < 300*time.Millisecond || got[0].P50 > 300*time.Millisecond+round ||
			got[0].Max < 2*time.Second || got[0].Max > 2*time.Second+round || got[0].P95 != got[0].Max {
			t.Errorf("got %v", got)
		}
	})
}

// Where changes are effective at once, and where a table stays wrong, there is nothing to measure.
func TestNoConvergence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var summary Summary
		immediate := newFake(func(c Connection, probe int) Outcome { return connectedIf(probe == 0 || !denied(c)) })
		immediate.support.Immediate = true
		summary.Add((Runner{Backend: immediate}).Play(t.Context(), closedX(small)))
		open := newFake(func(Connection, int) Outcome { return Connected })
		summary.Add((Runner{Backend: open}).Play(t.Context(), closedX(small)))

		if got := summary.Convergence(); len(got) > 0 {
			t.Errorf("got %v", got)
		}
	})
}

func TestChangeBetween(t *testing.T) {
	policy := NewPolicy("x", "deny", Subject("pod=a"), DenyIngress())
	for _, c := range []struct {
		name   string
		change func(*State)
		want   Change
	}{
		{"nothing", func(*State) {}, ""},
		{"policy", func(s *State) { s.Apply(policy) }, ChangePolicy},
		{"label of a pod", func(s *State) { s.LabelPod("x/a", "team=red") }, ChangePodLabel},
		{"label of a namespace", func(s *State) { s.LabelNamespace("x", "team=red") }, ChangeNamespaceLabel},
		{"deleted pod", func(s *State) { s.DeletePod("x/b") }, ChangeDeletedPod},
		{"new pod", func(s *State) { s.AddPod(NewPod("x", "new", "node-1", nil)) }, ChangeNewPod},
		{"recreated pod", func(s *State) { s.RecreatePod("x/a") }, ChangeNewPod},
		{"several", func(s *State) { s.Apply(policy); s.RecreatePod("x/a") }, ChangeNewPod},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := small.State()
			for i := range before.Pods {
				before.Pods[i].Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.1"}}
			}
			after := before.Clone()
			c.change(after)

			if got := changeBetween(before, after); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestCheckHealthNamesWhatDoesNotConnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(func(c Connection, _ int) Outcome { return connectedIf(c.To != "y/b" || c.Port != 81) })

		err := (Runner{Backend: f}).CheckHealth(t.Context())

		if err == nil || !strings.Contains(err.Error(), "TCP 81 IPv4") || strings.Contains(err.Error(), "TCP 80 IPv4") ||
			!strings.Contains(err.Error(), "-> y/b: timed out") {
			t.Errorf("got %v", err)
		}
	})
}
