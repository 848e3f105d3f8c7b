package queue_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/queue"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/queue/queuetest"
)

// inBubble runs f with a new kernel in a synctest bubble.
func inBubble(t *testing.T, f func(t *testing.T, k *queuetest.Kernel)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, queuetest.New()) })
}

func on(k *queuetest.Kernel) queue.Config {
	return queue.Config{First: 100, Count: 1, Kernel: k}
}

func payload(s string) queuetest.Packet { return queuetest.Packet{Payload: []byte(s)} }

func wantOutcome(t *testing.T, what string, f *queuetest.Fate, want queuetest.Outcome) {
	t.Helper()
	synctest.Wait()
	if got := f.Outcome(); got != want {
		t.Errorf("%s: %s, want %s", what, got, want)
	}
}

func (r *run) wantMetric(name, label string, want float64) {
	r.t.Helper()
	if got := r.metric(name, label); got != want {
		r.t.Errorf("%s{%s} is %v, want %v", name, label, got, want)
	}
}

func TestPacketsAreAnsweredInOrder(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		var decided []string
		ready := make(chan struct{})
		r := startGated(t, on(k), func(q queue.Packet) queue.Verdict {
			decided = append(decided, string(q.Payload))
			if strings.HasPrefix(string(q.Payload), "good") {
				return queue.Accept
			}
			return queue.Drop
		}, ready)
		synctest.Wait()
		var sent []string
		var fates []*queuetest.Fate
		for i := range 200 { // more than two batches
			sent = append(sent, []string{"good", "bad"}[i%2]+fmt.Sprint(i))
			fates = append(fates, k.Send(100, payload(sent[i])))
		}
		close(ready)
		synctest.Wait()
		if !slices.Equal(decided, sent) {
			t.Errorf("decided %v, want %v", decided, sent)
		}
		for i, f := range fates {
			wantOutcome(t, sent[i], f, []queuetest.Outcome{queuetest.Accepted, queuetest.Dropped}[i%2])
		}
		r.wantMetric("netpol_queue_verdicts_total", "accept", 100)
		r.wantMetric("netpol_queue_verdicts_total", "drop", 100)
		r.wantMetric("nfqueue_queue_total", "100", 0)
		r.wantMetric("nfqueue_packet_id", "100", 200)
	})
}

func TestABatchIsAnsweredInOneWrite(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		ready := make(chan struct{})
		startGated(t, on(k), always(queue.Accept), ready)
		synctest.Wait()
		for range 60 {
			k.Send(100, payload("x"))
		}
		before := k.Writes(100)
		close(ready)
		synctest.Wait()
		if got := k.Writes(100) - before; got != 1 {
			t.Errorf("%d writes for 60 packets, want 1", got)
		}
	})
}

func TestClassMarkIsOnPacketsOfAcceptedClassesAlone(t *testing.T) {
	for _, tt := range []struct {
		name    string
		mark    uint32
		verdict queue.Verdict
		want    uint32
	}{
		{"class", 0x4000, queue.AcceptClass, 0x4900},
		{"accepted", 0x4000, queue.Accept, 0x4100},
		{"accepted, with the mark of another program", 0x4800, queue.Accept, 0x4100},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
				cfg := on(k)
				cfg.AcceptMark, cfg.ClassMark = 0x100, 0x800
				start(t, cfg, always(tt.verdict))
				synctest.Wait()
				f := k.Send(100, queuetest.Packet{Payload: []byte("packet"), Mark: tt.mark})
				wantOutcome(t, tt.name, f, queuetest.Accepted)
				if got := f.Mark(); got != tt.want {
					t.Errorf("mark %#x, want %#x", got, tt.want)
				}
			})
		})
	}
}

func TestFlushedWaitsForPacketsThatAreBeingDecided(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		var r *run
		waits := false
		r = start(t, on(k), func(queue.Packet) queue.Verdict {
			waits = r.FlushedWaits()
			return queue.Accept
		})
		synctest.Wait()
		f := k.Send(100, payload("packet"))
		wantOutcome(t, "the packet", f, queuetest.Accepted)
		r.Flushed()
		if !waits {
			t.Error("Flushed does not wait for a packet that is being decided")
		}
	})
}

func TestAcceptMarkIsAddedToTheMarkOfAcceptedPackets(t *testing.T) {
	tests := []struct {
		name             string
		acceptMark, mark uint32
		verdict          queue.Verdict
		want             uint32
	}{
		{"no mark before", 0x100, 0, queue.Accept, 0x100},
		{"other bits are kept", 0x100, 0x4000, queue.Accept, 0x4100},
		{"no AcceptMark", 0, 0x4000, queue.Accept, 0x4000},
		{"dropped", 0x100, 0x4000, queue.Drop, 0x4000},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
				cfg := on(k)
				cfg.AcceptMark = tt.acceptMark
				start(t, cfg, always(tt.verdict))
				synctest.Wait()
				f := k.Send(100, queuetest.Packet{Payload: []byte("x"), Mark: tt.mark})
				<-f.Done()
				if got := f.Mark(); got != tt.want {
					t.Errorf("mark %#x, want %#x", got, tt.want)
				}
			})
		})
	}
}

func TestPayloads(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		var got []string
		cfg := on(k)
		cfg.CopyRange = 5
		start(t, cfg, func(q queue.Packet) queue.Verdict {
			got = append(got, string(q.Payload))
			return queue.Accept
		})
		synctest.Wait()
		for _, s := range []string{"", "1", "123", "12345", "cut off here"} {
			wantOutcome(t, s, k.Send(100, payload(s)), queuetest.Accepted)
		}
		if want := []string{"", "1", "123", "12345", "cut o"}; !slices.Equal(got, want) {
			t.Errorf("decided %q, want %q", got, want)
		}
	})
}

// The hook and the interfaces are the same when a pending packet is decided again.
func TestInputHookAndLinksAreReported(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		type input struct {
			toHost    bool
			link, out uint32
		}
		seen := map[string][]input{} // by payload
		start(t, on(k), func(q queue.Packet) queue.Verdict {
			seen[string(q.Payload)] = append(seen[string(q.Payload)], input{q.ToHost, q.Link, q.OutLink})
			if len(seen[string(q.Payload)]) < 2 {
				return queue.Defer
			}
			return queue.Accept
		})
		synctest.Wait()
		for _, want := range []input{{true, 7, 0}, {false, 0, 9}, {true, 1 << 20, 0}, {false, 3, 1 << 20}} {
			f := k.Send(100, queuetest.Packet{Payload: fmt.Append(nil, want), ToHost: want.toHost, Link: want.link, OutLink: want.out})
			<-f.Done()
			if got := seen[fmt.Sprint(want)]; !slices.Equal(got, []input{want, want}) {
				t.Errorf("called with %v, want %v twice", got, want)
			}
			clear(seen)
		}
	})
}

func TestAPanicCostsOnePacket(t *testing.T) {
	for failOpen, want := range map[bool]queuetest.Outcome{false: queuetest.Dropped, true: queuetest.Accepted} {
		t.Run(fmt.Sprintf("FailOpenOnPanic=%v", failOpen), func(t *testing.T) {
			inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
				cfg := on(k)
				cfg.FailOpenOnPanic = failOpen
				r := start(t, cfg, func(q queue.Packet) queue.Verdict {
					_ = q.Payload[2]
					return queue.Accept
				})
				synctest.Wait()
				wantOutcome(t, "packet that panics", k.Send(100, payload("x")), want)
				wantOutcome(t, "packet after it", k.Send(100, payload("xyz")), queuetest.Accepted)
				r.wantMetric("netpol_queue_errors_total", "panic", 1)
			})
		})
	}
}

func TestNothingIsDecidedBeforeReady(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		ready := make(chan struct{})
		r := startGated(t, on(k), always(queue.Accept), ready)
		synctest.Wait()
		if !r.Bound() {
			t.Error("not bound before ready")
		}
		f := k.Send(100, payload("x"))
		for range 10 { // five minutes
			if err := r.Live(time.Now()); err != nil {
				t.Fatalf("not live before ready: %v", err)
			}
			time.Sleep(30 * time.Second)
		}
		wantOutcome(t, "packet before ready", f, queuetest.Waiting)
		close(ready)
		wantOutcome(t, "packet after ready", f, queuetest.Accepted)
	})
}

func TestFullReceiveBufferIsCountedAndNotFatal(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		cfg := on(k)
		cfg.ReceiveBuffer = 4096 // ten messages
		ready := make(chan struct{})
		r := startGated(t, cfg, always(queue.Accept), ready)
		synctest.Wait()
		outcomes := map[queuetest.Outcome]float64{}
		var fates []*queuetest.Fate
		for range 30 {
			fates = append(fates, k.Send(100, payload("x")))
		}
		close(ready)
		synctest.Wait()
		for _, f := range fates {
			outcomes[f.Outcome()]++
		}
		lost := outcomes[queuetest.BufferFull]
		if lost == 0 || outcomes[queuetest.Accepted]+lost != 30 {
			t.Errorf("outcomes %v, want some accepted and the rest lost", outcomes)
		}
		r.wantMetric("netpol_queue_errors_total", "overflow", 1)
		r.wantMetric("nfqueue_user_dropped", "100", lost)
		wantOutcome(t, "packet after ENOBUFS", k.Send(100, payload("x")), queuetest.Accepted)
	})
}

func TestFullQueue(t *testing.T) {
	for failOpen, want := range map[bool]queuetest.Outcome{false: queuetest.QueueFull, true: queuetest.FailedOpen} {
		t.Run(fmt.Sprintf("FailOpen=%v", failOpen), func(t *testing.T) {
			inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
				cfg := on(k)
				cfg.MaxLen, cfg.FailOpen = 10, failOpen
				startGated(t, cfg, always(queue.Accept), nil)
				synctest.Wait()
				for range 10 {
					wantOutcome(t, "packet that finds room", k.Send(100, payload("x")), queuetest.Waiting)
				}
				wantOutcome(t, "packet that finds none", k.Send(100, payload("x")), want)
			})
		})
	}
}

func TestVerdictsOnPacketsThatAreGoneAreCounted(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		r := start(t, on(k), func(queue.Packet) queue.Verdict {
			k.Forget()
			return queue.Accept
		})
		synctest.Wait()
		wantOutcome(t, "packet", k.Send(100, payload("x")), queuetest.Flushed)
		r.wantMetric("netpol_queue_errors_total", "gone", 1)
		r.wantMetric("netpol_queue_errors_total", "refused", 0)
	})
}

func TestMessagesThatCannotBeReadAreCounted(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		r := start(t, on(k), always(queue.Accept))
		synctest.Wait()
		k.Inject(100, []byte("nonsense"))
		k.Inject(100, nil)
		k.Inject(100, make([]byte, 4096))
		wantOutcome(t, "packet after them", k.Send(100, payload("x")), queuetest.Accepted)
		r.wantMetric("netpol_queue_errors_total", "malformed", 2)
	})
}

func TestMarksSayWhichEndOpenedAConnection(t *testing.T) {
	for _, tt := range []struct {
		mark                       uint32
		marked, established, reply bool
	}{
		{0x4000, false, false, false},
		{0x4100, true, false, false},
		{0x4900, false, true, false},
		{0x4800, false, true, true},
	} {
		inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
			cfg := on(k)
			cfg.AcceptMark, cfg.EstablishedMark = 0x100, 0x800
			start(t, cfg, func(p queue.Packet) queue.Verdict {
				if p.Marked != tt.marked || p.Established != tt.established || p.Reply != tt.reply {
					t.Errorf("mark %#x: %+v", tt.mark, p)
				}
				return queue.Accept
			})
			synctest.Wait()
			f := k.Send(100, queuetest.Packet{Payload: []byte("packet"), Mark: tt.mark})
			wantOutcome(t, "the packet", f, queuetest.Accepted)
			if got := f.Mark(); got != 0x4100 {
				t.Errorf("mark %#x becomes %#x", tt.mark, got)
			}
		})
	}
}
