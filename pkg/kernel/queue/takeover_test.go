package queue_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/queue"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/queue/queuetest"
)

func TestTakenNumberIsBoundOnceItIsFree(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		release := k.Take(101)
		cfg := on(k)
		cfg.Count = 2
		r := start(t, cfg, always(queue.Accept))
		time.Sleep(time.Minute)
		if r.Bound() {
			t.Error("bound while another process has bound a number")
		}
		if err := r.Live(time.Now()); err != nil {
			t.Errorf("not live while a number is taken: %v", err)
		}
		r.wantMetric("netpol_queue_bound", "100", 1)
		r.wantMetric("netpol_queue_bound", "101", 0)
		wantOutcome(t, "packet to the free number", k.Send(100, payload("x")), queuetest.Accepted)

		release()
		time.Sleep(time.Second)
		if !r.Bound() {
			t.Error("not bound a second after the number was free")
		}
		wantOutcome(t, "packet to the number taken over", k.Send(101, payload("x")), queuetest.Accepted)
	})
}

// refusing is a kernel that answers the first attempts to bind with EINVAL.
type refusing struct {
	*queuetest.Kernel
	attempts int
}

func (r *refusing) Bind(ctx context.Context, number uint16, cfg queue.Config) (queue.Socket, error) {
	r.attempts--
	if r.attempts >= 0 {
		return nil, fmt.Errorf("bind queue %d: %w", number, unix.EINVAL)
	}
	return r.Kernel.Bind(ctx, number, cfg)
}

func TestModuleThatIsLoadingIsWaitedFor(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		cfg := on(k)
		cfg.Kernel = &refusing{k, 3}
		r := start(t, cfg, always(queue.Accept))
		time.Sleep(time.Second)
		if !r.Bound() {
			t.Error("not bound although the module is loaded")
		}
	})
}

func TestAKernelWithoutQueuesEndsRun(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		cfg := on(k)
		cfg.Kernel = &refusing{k, math.MaxInt}
		r := start(t, cfg, always(queue.Accept))
		time.Sleep(time.Minute)
		if err := r.stop(); !errors.Is(err, unix.EINVAL) {
			t.Errorf("Run returned %v, want EINVAL", err)
		}
	})
}

func TestRunEndsWhileItsNumberIsTaken(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		defer k.Take(100)()
		r := start(t, on(k), always(queue.Accept))
		synctest.Wait()
		if err := r.stop(); err != nil {
			t.Errorf("Run returned %v", err)
		}
	})
}

func TestNewProcessTakesOver(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		old := start(t, on(k), always(queue.Drop))
		synctest.Wait()
		next := start(t, on(k), always(queue.Accept))
		synctest.Wait()
		wantOutcome(t, "packet while the old one runs", k.Send(100, payload("x")), queuetest.Dropped)
		if err := old.stop(); err != nil {
			t.Errorf("old Run returned %v", err)
		}
		if old.Bound() {
			t.Error("the old one is bound after its end")
		}
		time.Sleep(time.Second)
		if !next.Bound() {
			t.Error("the new one is not bound a second after the old one left")
		}
		wantOutcome(t, "packet while the new one runs", k.Send(100, payload("x")), queuetest.Accepted)
	})
}

func TestWhatWaitsAtTheEndIsAnswered(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		answer := make(chan struct{})
		r := start(t, on(k), func(queue.Packet) queue.Verdict {
			<-answer
			return queue.Accept
		})
		synctest.Wait()
		var fates []*queuetest.Fate
		for range 1000 {
			fates = append(fates, k.Send(100, payload("x")))
		}
		r.cancel()
		synctest.Wait()
		close(answer)
		if err := r.stop(); err != nil {
			t.Errorf("Run returned %v", err)
		}
		for _, f := range fates {
			wantOutcome(t, "packet that waited", f, queuetest.Accepted)
		}
		wantOutcome(t, "packet after the end", k.Send(100, payload("x")), queuetest.NoListener)
	})
}

func TestSlowHandlerDoesNotDelayTheEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		r := start(t, on(k), func(queue.Packet) queue.Verdict {
			time.Sleep(100 * time.Millisecond)
			return queue.Accept
		})
		synctest.Wait()
		for range 10000 {
			k.Send(100, payload("x"))
		}
		begin := time.Now()
		if err := r.stop(); err != nil {
			t.Errorf("Run returned %v", err)
		}
		// The end takes two batches of 64, but not a third one.
		if took := time.Since(begin); took > 15*time.Second {
			t.Errorf("Run ended after %v", took)
		}
	})
}

func TestRunEndsBeforeReady(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		r := startGated(t, on(k), always(queue.Accept), nil)
		synctest.Wait()
		f := k.Send(100, payload("x"))
		if err := r.stop(); err != nil {
			t.Errorf("Run returned %v", err)
		}
		wantOutcome(t, "packet that could not be decided", f, queuetest.Flushed)
	})
}

func TestLive(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		answer := make(chan struct{})
		r := start(t, on(k), func(queue.Packet) queue.Verdict {
			<-answer
			return queue.Accept
		})
		live := func(want bool, when string) {
			t.Helper()
			synctest.Wait()
			if err := r.Live(time.Now()); (err == nil) != want {
				t.Errorf("%s: Live returned %v", when, err)
			}
		}
		live(true, "nothing waits")
		time.Sleep(time.Hour)
		k.Send(100, payload("x"))
		live(true, "the first packet waits")
		time.Sleep(9 * time.Second)
		live(true, "it waits for 9 s")
		time.Sleep(time.Second)
		live(false, "it waits for 10 s")
		answer <- struct{}{}
		live(true, "it was answered")
		k.Send(100, payload("x"))
		live(true, "the second packet waits")
		time.Sleep(9 * time.Second)
		k.Send(100, payload("x"))
		answer <- struct{}{}
		time.Sleep(9 * time.Second)
		live(true, "one is answered, and another waits for 9 s")
		close(answer)
		live(true, "all are answered")
	})
}

func TestTakenNumberIsLoggedOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		defer k.Take(100)()
		cfg := on(k)
		cfg.Registerer = prometheus.NewRegistry()
		q, err := queue.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), logger), time.Minute)
		defer cancel()
		if err := q.Run(ctx, always(queue.Accept), open()); err != nil {
			t.Errorf("Run returned %v", err)
		}
		log := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
		if got := strings.Count(log, "queue 100 is taken by another process"); got != 1 {
			t.Errorf("logged %d times, want once:\n%s", got, log)
		}
	})
}
