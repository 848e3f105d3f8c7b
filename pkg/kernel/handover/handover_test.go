package handover

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/queue"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/queue/queuetest"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/queuenum"
)

func TestFreeQueueNumbersAreClaimed(t *testing.T) {
	for _, tt := range []struct {
		name  string
		first uint16
		taken []uint16
		want  uint16 // 0 for an error
	}{
		{name: "all are free", first: 100, want: 100},
		{name: "the first is taken", first: 100, taken: []uint16{100}, want: 107},
		{name: "the last is taken", first: 100, taken: []uint16{106}, want: 107},
		{name: "one in between is taken", first: 100, taken: []uint16{103}, want: 107},
		{name: "the neighbors are taken", first: 100, taken: []uint16{99, 107}, want: 100},
		{name: "three ranges are taken", first: 100, taken: []uint16{100, 109, 120}, want: 121},
		{name: "all ranges are taken", first: 100, taken: []uint16{100, 107, 114, 121, 128, 135, 142, 149}},
		{name: "no range is left below 65536", first: 65522, taken: []uint16{65522, 65529}},
		{name: "the last range below 65536", first: 65522, taken: []uint16{65522}, want: 65529},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := queuetest.New()
			numbers := queue.Numbers{Kernel: k}
			for _, n := range tt.taken {
				defer k.Take(n)()
			}
			p, err := Claim(t.Context(), numbers, queuenum.Range{First: tt.first, Count: 7})
			if tt.want == 0 {
				if err == nil || !strings.Contains(err.Error(), "no 7 queue numbers in a row are free") {
					t.Fatalf("claimed %v, error %v", p, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if want := (queuenum.Range{First: tt.want, Count: 7}); p.Numbers != want || p.Beside != (tt.want != tt.first) {
				t.Errorf("claimed %v, beside others: %v, want %v", p.Numbers, p.Beside, want)
			}
			last := tt.want + 6
			if _, err := numbers.Claim(t.Context(), last); !errors.Is(err, queue.ErrTaken) {
				t.Errorf("number %d is not taken: %v", last, err)
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			if c, err := numbers.Claim(t.Context(), last); err != nil {
				t.Errorf("number %d is not free after the end: %v", last, err)
			} else {
				_ = c.Close()
			}
		})
	}
}

func TestRangesThatWereNotClaimedAreFree(t *testing.T) {
	k := queuetest.New()
	numbers := queue.Numbers{Kernel: k}
	defer k.Take(101)()
	if _, err := Claim(t.Context(), numbers, queuenum.Range{First: 100, Count: 7}); err != nil {
		t.Fatal(err)
	}
	stats, err := k.Stats()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range stats {
		if s.Number != 101 && s.Number != 113 {
			t.Errorf("queue %d is bound", s.Number)
		}
	}
}

// own are the numbers of the agent that the tests are about.
var own = queuenum.Range{First: 110, Count: 10}

func TestOtherAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := queuetest.New()
		numbers := queue.Numbers{Kernel: k}
		p := &Place{Numbers: own, node: numbers}
		defer k.Take(110)()
		defer k.Take(119)()
		defer k.Take(30)()
		defer k.Take(190)()
		if !p.Alone() {
			t.Error("numbers far away are taken for another agent")
		}
		release := k.Take(109)
		if p.Alone() || !p.Bound(109) || p.Bound(108) {
			t.Error("another agent is not seen")
		}
		release()
		if !p.Alone() {
			t.Error("an agent that is gone is seen")
		}

		startQueues(t, k, 111, queue.Defer)
		if !p.empty() {
			t.Error("empty queues are not empty")
		}
		k.Send(111, queuetest.Packet{Payload: []byte("pending")})
		synctest.Wait()
		if p.empty() {
			t.Error("a queue with a pending packet is empty")
		}
		time.Sleep(2 * time.Second)
		if !p.empty() {
			t.Error("a pending packet has no verdict after two seconds")
		}
	})
}

// An agent ends when all packets in its queues have their verdicts, also those that wait for
// the status of a pod of another node.
func TestPacketsAreDecidedBeforeTheEnd(t *testing.T) {
	for verdict, want := range map[queue.Verdict]time.Duration{queue.Defer: time.Second, queue.DeferLong: 4 * time.Second} {
		t.Run(fmt.Sprintf("after %v", want), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := queuetest.New()
				numbers := queue.Numbers{Kernel: k}
				p := &Place{Numbers: own, node: numbers}
				startQueues(t, k, 111, verdict)
				k.Send(111, queuetest.Packet{Payload: []byte("pending")})
				synctest.Wait()
				begin := time.Now()
				p.Leave(&released{others: true})
				if took := time.Since(begin); took < want || !p.empty() {
					t.Errorf("after %v the agent ends, want %v and no packet in its queues", took, want)
				}
			})
		})
	}
}

// released is a table that another agent takes over some time after its release.
type released struct {
	after  time.Duration // negative if no agent does
	at     time.Time     // of the release
	others bool          // another agent held it before
}

func (r *released) Release() { r.at = time.Now() }
func (r *released) HeldByOther() bool {
	return r.others || !r.at.IsZero() && r.after >= 0 && time.Since(r.at) >= r.after
}

func TestAgentEndsAfterAnotherOneHasTakenOver(t *testing.T) {
	for _, tc := range []struct {
		name     string
		table    released
		alone    bool
		released bool
		want     time.Duration // that the agent waits
	}{
		{name: "it is the only one", table: released{after: -1}, alone: true},
		{name: "another one holds the table", table: released{others: true}},
		{name: "another one takes over at once", table: released{}, released: true},
		{name: "another one takes over later", table: released{after: 700 * time.Millisecond}, released: true, want: 700 * time.Millisecond},
		{name: "no one takes over", table: released{after: -1}, released: true, want: releaseTime},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := queuetest.New()
				numbers := queue.Numbers{Kernel: k}
				if !tc.alone {
					startQueues(t, k, 129, queue.Drop)
				}
				begin := time.Now()
				(&Place{Numbers: own, node: numbers}).Leave(&tc.table)
				if took := time.Since(begin); took < tc.want || took > tc.want+pollEvery {
					t.Errorf("the agent ends after %v, want %v", took, tc.want)
				}
				if got := !tc.table.at.IsZero(); got != tc.released {
					t.Errorf("released: %v, want %v", got, tc.released)
				}
			})
		})
	}
}

// startQueues binds one queue, all of whose packets become pending with this verdict.
func startQueues(t *testing.T, k *queuetest.Kernel, number uint16, pending queue.Verdict) {
	t.Helper()
	queues, err := queue.New(queue.Config{First: number, Count: 1, Kernel: k, Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done, ready := make(chan error, 1), make(chan struct{})
	close(ready)
	go func() { done <- queues.Run(ctx, func(queue.Packet) queue.Verdict { return pending }, ready) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
}
