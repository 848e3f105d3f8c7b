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

// holdingFake is a fake that enforces closedX for new connections at once. An established
// connection gets its last answer when lasts has passed since the policy was applied.
type holdingFake struct {
	*fake
	lasts   func(Connection) time.Duration
	holds   [][]Connection
	applied time.Time
	open    int // Helds that are not closed
}

// forEver is how long a connection lasts that is kept.
const forEver = time.Hour

func newHoldingFake(lasts func(Connection) time.Duration) *holdingFake {
	h := &holdingFake{lasts: lasts}
	h.fake = newFake(func(c Connection, probe int) Outcome { return connectedIf(probe == 0 || !denied(c)) })
	return h
}

func (h *holdingFake) Apply(ctx context.Context, state *State) error {
	h.applied = time.Now()
	return h.fake.Apply(ctx, state)
}

func (h *holdingFake) Hold(_ context.Context, connections []Connection) (Held, error) {
	h.holds = append(h.holds, connections)
	h.open++
	return &fakeHeld{h, connections}, nil
}

// holdingNone is a Holder that cannot hold anything.
type holdingNone struct{ *fake }

func (holdingNone) Hold(context.Context, []Connection) (Held, error) {
	return nil, errors.ErrUnsupported
}

// Where no connection can be held, scenarios are played without.
func TestNothingIsHeld(t *testing.T) {
	f := newFake(func(c Connection, probe int) Outcome { return connectedIf(probe == 0 || !denied(c)) })
	result := Runner{Backend: holdingNone{f}, Settle: 1}.Play(t.Context(), closedX(small))
	if !result.OK() || len(result.Steps) != 1 || result.Steps[0].Established.Cut != 0 {
		t.Errorf("%v\n%s", result.Err, result.Report(ASCII, false))
	}
}

type fakeHeld struct {
	backend     *holdingFake
	connections []Connection
}

func (f *fakeHeld) Silent(context.Context) ([]time.Duration, error) {
	var silent []time.Duration
	for _, c := range f.connections {
		silent = append(silent, max(0, time.Since(f.backend.applied.Add(f.backend.lasts(c)))))
	}
	return silent, nil
}

func (f *fakeHeld) Close() { f.backend.open-- }

// The connections that a step denies are held across it. Its time ends with the last answer on any
// of them.
func TestRevocation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHoldingFake(func(c Connection) time.Duration {
			return map[string]time.Duration{"x/b": 0, "y/a": 40 * time.Millisecond, "y/b": 1700 * time.Millisecond}[c.From]
		})
		h.support.Features = append(h.support.Features, CutsEstablished)
		var summary Summary

		result := (Runner{Backend: h}).Play(t.Context(), closedX(small))
		summary.Add(result)

		if !result.OK() || len(h.holds) != 1 || h.open != 0 {
			t.Fatalf("%d times held, %d of them not closed\n%s", len(h.holds), h.open, result.Report(ASCII, true))
		}
		var held []string
		for _, c := range h.holds[0] {
			held = append(held, c.String())
		}
		if want := []string{"x/b -> x/a TCP 80 IPv4", "y/a -> x/a TCP 80 IPv4", "y/b -> x/a TCP 80 IPv4"}; !slices.Equal(held, want) {
			t.Errorf("held %q, want %q", held, want)
		}
		want := "[policy: established connections gone after 1700 ms (p50), 1700 ms (p95), 1700 ms (p99), 1700 ms (max), changes: 1, cut: 3, kept: 0]"
		if got := fmt.Sprint(summary.Revocation()); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

// The API leaves open whether established connections end. Only a backend that promises it fails.
func TestKeptConnections(t *testing.T) {
	for _, mustEnd := range []bool{false, true} {
		t.Run(fmt.Sprintf("must end: %v", mustEnd), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHoldingFake(func(c Connection) time.Duration {
					return map[string]time.Duration{"y/a": forEver}[c.From]
				})
				if mustEnd {
					h.support.Features = append(h.support.Features, CutsEstablished)
				}
				var summary Summary

				result := (Runner{Backend: h}).Play(t.Context(), closedX(small))
				summary.Add(result)

				if result.OK() == mustEnd || result.Err != nil || result.Differs() != mustEnd {
					t.Errorf("OK %v, error %v", result.OK(), result.Err)
				}
				if report := result.Report(ASCII, false); strings.Contains(report, "closed, step 1 deny: 1 of 3 established connections were not cut: y/a -> x/a TCP 80 IPv4\n") != mustEnd {
					t.Errorf("report %q", report)
				}
				if got := fmt.Sprint(summary.Revocation()); got != "[policy: established connections, changes: 1, cut: 2, kept: 1]" {
					t.Errorf("got %s", got)
				}
			})
		})
	}
}

// Connections are held whose ends stay what they are, by protocols that have connections.
func TestWhatIsHeld(t *testing.T) {
	model := small
	model.Protocols = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, ICMP}
	deny := NewPolicy("x", "deny", Subject("pod=a"), DenyIngress())
	for _, c := range []struct {
		name   string
		change func(*State)
		want   int
	}{
		{"policy", func(s *State) { s.Apply(deny) }, 6},
		{"with a deleted pod", func(s *State) { s.Apply(deny); s.DeletePod("y/b") }, 4},
		{"with another address", func(s *State) {
			s.Apply(deny)
			s.ChangePod("y/b", func(p *corev1.Pod) { p.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.9"}} })
		}, 4},
		{"with a pod without an address", func(s *State) { s.Apply(deny); s.RecreatePod("y/b") }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHoldingFake(func(Connection) time.Duration { return 0 })
				h.support.Protocols = model.Protocols
				scenario := closedX(model)
				scenario.Steps[0].Change = c.change

				if result := (Runner{Backend: h}).Play(t.Context(), scenario); !result.OK() {
					t.Fatal(result.Report(ASCII, false))
				}
				held := 0
				for _, connections := range h.holds {
					held += len(connections)
				}

				if held != c.want {
					t.Errorf("%d connections are held, want %d: %v", held, c.want, h.holds)
				}
			})
		})
	}
}

func TestSpread(t *testing.T) {
	for n, want := range map[int][]int{1: {0}, 3: {0, 2, 4}, 7: {0, 1, 2, 3, 4, 5, 6}, 9: {0, 1, 2, 3, 4, 5, 6}} {
		if got := spread([]int{0, 1, 2, 3, 4, 5, 6}, n); !slices.Equal(got, want) {
			t.Errorf("%d: got %v, want %v", n, got, want)
		}
	}
}
