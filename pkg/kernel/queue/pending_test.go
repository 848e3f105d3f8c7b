package queue_test

import (
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/queue"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/queue/queuetest"
)

func TestPendingPacketsAreRetried(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		begin := time.Now()
		var called []time.Duration
		r := start(t, on(k), func(q queue.Packet) queue.Verdict {
			if string(q.Payload) != "later" {
				return queue.Drop
			}
			called = append(called, time.Since(begin))
			if len(called) < 4 {
				return queue.Defer
			}
			return queue.Accept
		})
		synctest.Wait()
		f := k.Send(100, payload("later"))
		wantOutcome(t, "pending packet", f, queuetest.Waiting)
		r.wantMetric("netpol_queue_pending", "", 1)
		wantOutcome(t, "packet behind it", k.Send(100, payload("now")), queuetest.Dropped)
		<-f.Done()
		wantOutcome(t, "pending packet", f, queuetest.Accepted)
		for i, at := range called {
			if want := time.Duration(i) * 5 * time.Millisecond; at != want {
				t.Errorf("call %d after %v, want %v", i, at, want)
			}
		}
		r.wantMetric("netpol_queue_pending", "", 0)
		r.wantMetric("netpol_queue_verdicts_total", "pending", 1)
	})
}

// While many packets are pending, the time that retries take is bounded.
func TestManyPendingPacketsAreRetriedLessOften(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		begin := time.Now()
		var called []time.Duration
		start(t, on(k), func(q queue.Packet) queue.Verdict {
			if string(q.Payload) == "first" {
				called = append(called, time.Since(begin))
			}
			return queue.DeferLong
		})
		synctest.Wait()
		k.Send(100, payload("first"))
		for range 40 {
			k.Send(100, payload("other"))
		}
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		ms := time.Millisecond
		if want := []time.Duration{0, 5 * ms, 25 * ms, 45 * ms, 65 * ms, 85 * ms}; !slices.Equal(called, want) {
			t.Errorf("called after %v, want %v", called, want)
		}
	})
}

func TestPendingPacketsAreDecidedInTime(t *testing.T) {
	tests := []struct {
		name          string
		before, after queue.Verdict // while the packet is pending, and on the last call
		time          time.Duration
		want          queuetest.Outcome
	}{
		{"accepted at last", queue.Defer, queue.Accept, time.Second, queuetest.Accepted},
		{"dropped at last", queue.Defer, queue.Drop, time.Second, queuetest.Dropped},
		{"never decided", queue.Defer, queue.Defer, time.Second, queuetest.Dropped},
		{"for long, accepted at last", queue.DeferLong, queue.Accept, 4 * time.Second, queuetest.Accepted},
		{"for long, dropped at last", queue.DeferLong, queue.Drop, 4 * time.Second, queuetest.Dropped},
		{"for long, never decided", queue.DeferLong, queue.DeferLong, 4 * time.Second, queuetest.Dropped},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
				start(t, on(k), func(q queue.Packet) queue.Verdict {
					if q.Last {
						return tt.after
					}
					return tt.before
				})
				synctest.Wait()
				begin := time.Now()
				f := k.Send(100, payload("x"))
				<-f.Done()
				if took := time.Since(begin); took != tt.time {
					t.Errorf("pending for %v, want %v", took, tt.time)
				}
				wantOutcome(t, "packet", f, tt.want)
			})
		})
	}
}

func TestPendingPacketsAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		r := start(t, on(k), func(q queue.Packet) queue.Verdict {
			if q.Last {
				return queue.Accept
			}
			return queue.Defer
		})
		synctest.Wait()
		for range 256 {
			k.Send(100, payload("x"))
		}
		synctest.Wait()
		r.wantMetric("netpol_queue_pending", "", 256)
		wantOutcome(t, "one more packet", k.Send(100, payload("x")), queuetest.Accepted)
		time.Sleep(2 * time.Second)
		r.wantMetric("netpol_queue_pending", "", 0)
		r.wantMetric("netpol_queue_verdicts_total", "accept", 257)
	})
}

func TestPendingPacketsKeepTheirPayloads(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		var decided sync.Map // by payload
		start(t, on(k), func(q queue.Packet) queue.Verdict {
			if _, ok := decided.Load(string(q.Payload)); ok {
				return queue.Accept
			}
			return queue.Defer
		})
		synctest.Wait()
		fates := map[string]*queuetest.Fate{}
		for _, name := range []string{"a", "bb", "ccc", "dddd"} {
			fates[name] = k.Send(100, payload(name))
		}
		for _, name := range []string{"bb", "dddd", "a", "ccc"} {
			wantOutcome(t, name, fates[name], queuetest.Waiting)
			decided.Store(name, true)
			time.Sleep(20 * time.Millisecond)
			wantOutcome(t, name, fates[name], queuetest.Accepted)
			decided.Delete(name)
			fates[name] = k.Send(100, payload(name)) // reuses the memory of earlier ones
		}
	})
}

func TestPendingPacketsAreAnsweredAtTheEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		r := start(t, on(k), func(q queue.Packet) queue.Verdict {
			if q.Last {
				return queue.Accept
			}
			return queue.Defer
		})
		synctest.Wait()
		f := k.Send(100, payload("x"))
		synctest.Wait()
		begin := time.Now()
		if err := r.stop(); err != nil {
			t.Errorf("Run returned %v", err)
		}
		if took := time.Since(begin); took != 0 {
			t.Errorf("the end took %v, want no time", took)
		}
		wantOutcome(t, "pending packet", f, queuetest.Accepted)
		r.wantMetric("netpol_queue_pending", "", 0)
	})
}

// One source must not use up the limit on pending packets.
func TestEachSourceHasBoundedPendingPackets(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		cfg := on(k)
		cfg.Source = func(payload []byte) netip.Addr { return netip.AddrFrom4([4]byte{payload[0]}) }
		r := start(t, cfg, func(q queue.Packet) queue.Verdict {
			if q.Last {
				return queue.Drop
			}
			return queue.Defer
		})
		synctest.Wait()
		for i := range 1000 {
			want := queuetest.Waiting
			if i >= 256 { // half of the limit
				want = queuetest.Dropped
			}
			wantOutcome(t, "packet of the first source", k.Send(100, payload("\x01")), want)
		}
		for i := range 40 {
			want := queuetest.Waiting
			if i >= 32 { // limit of a source above that
				want = queuetest.Dropped
			}
			wantOutcome(t, "packet of the second source", k.Send(100, payload("\x02")), want)
		}
		for source := 3; source <= 100; source++ {
			k.Send(100, payload(string([]byte{byte(source)})))
		}
		synctest.Wait()
		r.wantMetric("netpol_queue_pending", "", 256+32+98)
		time.Sleep(2 * time.Second)
		r.wantMetric("netpol_queue_pending", "", 0)
		wantOutcome(t, "packet of the first source, later", k.Send(100, payload("\x01")), queuetest.Waiting)
	})
}

// The limits for Defer and DeferLong are separate.
func TestRoomsForPendingPacketsAreSeparate(t *testing.T) {
	const long, short = 1280, 256 // of one source
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		r := start(t, on(k), func(q queue.Packet) queue.Verdict {
			switch {
			case q.Last:
				return queue.Drop
			case string(q.Payload) == "long":
				return queue.DeferLong
			}
			return queue.Defer
		})
		synctest.Wait()
		for range 2 {
			for range long {
				k.Send(100, payload("long"))
			}
			for range short {
				k.Send(100, payload("short"))
			}
			synctest.Wait()
			r.wantMetric("netpol_queue_pending", "", long+short)
			wantOutcome(t, "one more for long", k.Send(100, payload("long")), queuetest.Dropped)
			wantOutcome(t, "one more", k.Send(100, payload("short")), queuetest.Dropped)
			time.Sleep(2 * time.Second)
			r.wantMetric("netpol_queue_pending", "", long)
			time.Sleep(3 * time.Second)
			r.wantMetric("netpol_queue_pending", "", 0)
		}
	})
}
