package queue_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/queue"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/queue/queuetest"
)

// batch is the number of packets that are received at once.
const batch = 64

// lower returns a Config of queue 200, below queue 100.
func lower(k *queuetest.Kernel) queue.Config {
	cfg := on(k)
	cfg.First = 200
	return cfg
}

func TestPacketsOfTheFirstQueueAreDecidedFirst(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		var decided []byte
		ready := make(chan struct{})
		startGated(t, on(k), func(p queue.Packet) queue.Verdict {
			decided = append(decided, p.Payload...)
			return queue.Accept
		}, ready, lower(k))
		synctest.Wait()
		for range 200 { // more than three batches
			k.Send(200, payload("b"))
			k.Send(100, payload("a"))
		}
		close(ready)
		synctest.Wait()
		if want := strings.Repeat("a", 200) + strings.Repeat("b", 200); string(decided) != want {
			t.Errorf("decided %s, want %s", decided, want)
		}
	})
}

// A packet of the first queue waits for at most one batch of the lower queue.
func TestLowerQueuesAreServedABatchAtATime(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		decided := 0
		before := -1 // packets of the lower queue decided before the one of the first
		ready := make(chan struct{})
		startGated(t, on(k), func(p queue.Packet) queue.Verdict {
			if string(p.Payload) == "a" {
				before = decided
				return queue.Accept
			}
			decided++
			if decided == 1 {
				k.Send(100, payload("a"))
			}
			return queue.Accept
		}, ready, lower(k))
		synctest.Wait()
		for range 10 * batch {
			k.Send(200, payload("b"))
		}
		close(ready)
		synctest.Wait()
		if before < 0 || before > batch {
			t.Errorf("%d packets of the lower queue were decided first, want at most %d", before, batch)
		}
		if decided != 10*batch {
			t.Errorf("%d packets of the lower queue were decided, want all", decided)
		}
	})
}

// busy keeps the first queue from becoming empty until idle is closed.
func busy(t *testing.T, k *queuetest.Kernel) (idle chan struct{}, handler queue.Handler) {
	t.Helper()
	idle = make(chan struct{})
	return idle, func(p queue.Packet) queue.Verdict {
		if string(p.Payload) != "a" {
			return queue.Drop
		}
		select {
		case <-idle:
		default:
			k.Send(100, payload("a"))
			time.Sleep(100 * time.Millisecond)
		}
		return queue.Accept
	}
}

func TestBusyFirstQueueStarvesTheLowerAndIsLive(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		idle, handler := busy(t, k)
		cfg := lower(k)
		cfg.MaxLen = 3
		cfg.Purpose = "overflow"
		r := start(t, on(k), handler, cfg)
		synctest.Wait()
		k.Send(100, payload("a"))
		synctest.Wait()
		var fates []*queuetest.Fate
		for range cfg.MaxLen {
			fates = append(fates, k.Send(200, payload("b")))
		}
		wantOutcome(t, "packet beyond the length of the lower queue", k.Send(200, payload("b")), queuetest.QueueFull)
		for range 60 {
			if err := r.Live(time.Now()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		for _, f := range fates {
			wantOutcome(t, "packet of the lower queue", f, queuetest.Waiting)
		}
		close(idle)
		time.Sleep(time.Second)
		for _, f := range fates {
			wantOutcome(t, "packet of the lower queue", f, queuetest.Dropped)
		}
		r.wantMetric("nfqueue_queue_dropped", "overflow", 1)
		r.wantMetric("netpol_queue_verdicts_total", "overflow", 3)
	})
}

func TestStuckLowerQueueIsNotLive(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		answer := make(chan struct{})
		r := start(t, on(k), func(queue.Packet) queue.Verdict {
			<-answer
			return queue.Accept
		}, lower(k))
		synctest.Wait()
		k.Send(200, payload("b"))
		for second := range 10 {
			if err := r.Live(time.Now()); err != nil {
				t.Fatalf("after %d s: %v", second, err)
			}
			time.Sleep(time.Second)
		}
		if err := r.Live(time.Now()); err == nil || !strings.Contains(err.Error(), "queue 200: 1 packets wait") {
			t.Errorf("after 10 s: %v, want an error about queue 200", err)
		}
		close(answer)
	})
}

// Pending packets of a starved queue are still retried.
func TestPendingPacketsOfTheLowerQueueDoNotStarve(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		_, busy := busy(t, k)
		start(t, on(k), func(p queue.Packet) queue.Verdict {
			if string(p.Payload) == "b" && !p.Last {
				return queue.Defer
			}
			return busy(p)
		}, lower(k))
		synctest.Wait()
		f := k.Send(200, payload("b"))
		wantOutcome(t, "pending packet", f, queuetest.Waiting)
		k.Send(100, payload("a"))
		time.Sleep(1200 * time.Millisecond) // a second, and the packet being decided then
		wantOutcome(t, "pending packet", f, queuetest.Dropped)
	})
}

func TestEachQueueOfAWorkerIsBoundOnItsOwn(t *testing.T) {
	for number, other := range map[uint16]uint16{100: 200, 200: 100} {
		t.Run(fmt.Sprintf("%d is taken", number), func(t *testing.T) {
			inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
				release := k.Take(number)
				r := start(t, on(k), always(queue.Accept), lower(k))
				for range 60 {
					time.Sleep(time.Second)
					if err := r.Live(time.Now()); err != nil || r.Bound() {
						t.Fatalf("while %d is taken: Live %v, bound %v", number, err, r.Bound())
					}
					wantOutcome(t, "packet of the other queue", k.Send(other, payload("x")), queuetest.Accepted)
				}
				release()
				time.Sleep(200 * time.Millisecond)
				wantOutcome(t, "packet of the queue that was taken", k.Send(number, payload("x")), queuetest.Accepted)
				if !r.Bound() {
					t.Error("not bound at last")
				}
				if err := r.stop(); err != nil {
					t.Errorf("Run returned %v", err)
				}
				if stats, _ := k.Stats(); len(stats) != 0 {
					t.Errorf("sockets left open: %v", stats)
				}
			})
		})
	}
}

// All packets waiting in either queue at the end are answered, including pending ones.
func TestAllQueuesAreDrainedAtTheEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		resume := make(chan struct{})
		r := start(t, on(k), func(p queue.Packet) queue.Verdict {
			<-resume
			if !p.Last {
				return queue.Defer
			}
			return queue.Accept
		}, lower(k))
		synctest.Wait()
		var fates []*queuetest.Fate
		for range 3 * batch {
			fates = append(fates, k.Send(100, payload("a")), k.Send(200, payload("b")))
		}
		r.cancel()
		synctest.Wait()
		close(resume)
		if err := r.stop(); err != nil {
			t.Errorf("Run returned %v", err)
		}
		for _, f := range fates {
			wantOutcome(t, "packet that waited", f, queuetest.Accepted)
		}
	})
}

// Packets are answered even while waiting fails.
func TestFailedWaitsLoseNoPackets(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		r := start(t, on(k), always(queue.Accept), lower(k))
		synctest.Wait()
		k.Fail(100, queuetest.Wait, queuetest.Always, unix.ENOMEM)
		seconds := 0
		for ; r.Live(time.Now()) == nil && seconds < 30; seconds++ {
			for _, number := range []uint16{100, 200} {
				f := k.Send(number, payload("x"))
				time.Sleep(500 * time.Millisecond)
				wantOutcome(t, "packet", f, queuetest.Accepted)
			}
		}
		if seconds != 10 {
			t.Errorf("not live after %d s, want 10", seconds)
		}
		k.Fail(100, queuetest.Wait, 0, nil)
		time.Sleep(time.Second)
		if err := r.Live(time.Now()); err != nil {
			t.Errorf("not live afterwards: %v", err)
		}
		if errs := r.metric("netpol_queue_errors_total", "wait"); errs == 0 {
			t.Error("no error is counted")
		}
		r.wantMetric("netpol_queue_errors_total", "rebind", 0)
	})
}

func TestLowerConfigsHaveAsManyQueues(t *testing.T) {
	k := queuetest.New()
	cfg, low := on(k), lower(k)
	low.Count = 2
	cfg.Registerer, low.Registerer = prometheus.NewRegistry(), prometheus.NewRegistry()
	if _, err := queue.New(cfg, low); err == nil || !strings.Contains(err.Error(), "Count is 2, and 1 in the first Config") {
		t.Errorf("got %v, want an error about Count", err)
	}
	low.Count = 0
	if _, err := queue.New(cfg, low); err == nil || !slices.Contains(strings.Split(err.Error(), " "), "0") {
		t.Errorf("got %v, want an error about Count", err)
	}
}
