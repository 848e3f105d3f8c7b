package queue_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/queue"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/queue/queuetest"
)

// attempts is how often a failed call is made before its socket is closed.
const attempts = 5

// fault is a row of the table: the operation that fails, how often, and the expected result.
type fault struct {
	op      queuetest.Operation
	times   int
	rebinds int  // how often the queue is bound again
	rebind  bool // the fault can only happen in a rebind, so the socket is broken first
}

// faultTable contains every call of the packet path.
var faultTable = []fault{
	{op: queuetest.Wait, times: 1},
	{op: queuetest.Wait, times: 20},
	{op: queuetest.Receive, times: 1},
	{op: queuetest.Receive, times: attempts - 1},
	{op: queuetest.Receive, times: attempts, rebinds: 1},
	{op: queuetest.Receive, times: 2 * attempts, rebinds: 2},
	{op: queuetest.Send, times: 1},
	{op: queuetest.Send, times: attempts - 1},
	{op: queuetest.Send, times: attempts, rebinds: 1},
	{op: queuetest.SendPartly, times: 1},
	{op: queuetest.SendPartly, times: attempts - 1},
	{op: queuetest.SendWholly, times: 1},
	{op: queuetest.SendWholly, times: attempts - 1},
	{op: queuetest.Verdict, times: 1, rebinds: 1},
	{op: queuetest.Bind, times: 1, rebind: true, rebinds: 1},
	{op: queuetest.Bind, times: 8, rebind: true, rebinds: 1},
	{op: queuetest.Configure, times: 1, rebind: true, rebinds: 2},
	{op: queuetest.Close, times: 1, rebind: true, rebinds: 1},
	{op: queuetest.Stats, times: 3},
}

// errnos are the errors of system calls. For Receive, ENOBUFS has another meaning.
var errnos = []unix.Errno{
	unix.EINTR, unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM, unix.EIO, unix.EBADF, unix.EINVAL, unix.EPERM,
	unix.ENOTSOCK, unix.EMFILE, unix.ENFILE, unix.EMSGSIZE, unix.ECONNREFUSED, unix.EFAULT, unix.ENODEV,
}

func (f fault) name(errno unix.Errno) string {
	return fmt.Sprintf("%s/%d/%s", f.op, f.times, unix.ErrnoName(errno))
}

// number returns the queue with the fault. Packets of the other queue must not be lost.
func (f fault) number() uint16 {
	if f.op == queuetest.Stats {
		return 0
	}
	return 100
}

// layouts are the ways in which queues 100 and 101 can be served.
var layouts = map[string]func(k *queuetest.Kernel) (cfg queue.Config, lower []queue.Config){
	"by workers of their own": func(k *queuetest.Kernel) (queue.Config, []queue.Config) {
		return queue.Config{First: 100, Count: 2, Kernel: k}, nil
	},
	"the other by the same worker": func(k *queuetest.Kernel) (queue.Config, []queue.Config) {
		return queue.Config{First: 100, Count: 1, Kernel: k}, []queue.Config{{First: 101, Count: 1, Kernel: k}}
	},
	"the other first by the same worker": func(k *queuetest.Kernel) (queue.Config, []queue.Config) {
		return queue.Config{First: 101, Count: 1, Kernel: k}, []queue.Config{{First: 100, Count: 1, Kernel: k}}
	},
}

// Every fault is handled as in the table while packets arrive.
func TestTheFaultTable(t *testing.T) {
	for name, layout := range layouts {
		for _, f := range faultTable {
			for _, errno := range errnos {
				if f.op == queuetest.Receive && errno == unix.ENOBUFS {
					continue
				}
				t.Run(name+"/"+f.name(errno), func(t *testing.T) {
					inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
						cfg, lower := layout(k)
						f.walk(t, k, errno, cfg, lower...)
					})
				})
			}
		}
	}
}

func (f fault) walk(t *testing.T, k *queuetest.Kernel, errno unix.Errno, cfg queue.Config, lower ...queue.Config) {
	decided := make([]int, 2)
	r := start(t, cfg, func(p queue.Packet) queue.Verdict {
		decided[p.Payload[0]]++
		return queue.Accept
	}, lower...)
	synctest.Wait()
	fates := send100(k)
	k.Fail(f.number(), f.op, f.times, errno)
	if f.rebind {
		k.Fail(100, queuetest.Receive, attempts, unix.EBADF)
	}
	for range 100 { // a second
		fates = append(fates, send100(k)...)
		if err := r.Live(time.Now()); err != nil {
			t.Fatalf("not live: %v", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	k.Fail(f.number(), f.op, 0, nil)
	wantOutcome(t, "packet afterwards", k.Send(100, payload("\x00")), queuetest.Accepted)
	if got := r.metric("netpol_queue_errors_total", "rebind"); got != float64(f.rebinds) {
		t.Errorf("%v rebinds, want %d", got, f.rebinds)
	}
	if !r.Bound() {
		t.Error("not bound at the end")
	}
	outcomes := map[queuetest.Outcome]float64{}
	for _, fate := range fates {
		outcomes[fate.Outcome()]++
	}
	accounted(t, r, outcomes, decided)
	if err := r.stop(); err != nil {
		t.Errorf("Run returned %v", err)
	}
	if stats, _ := k.Stats(); len(stats) != 0 {
		t.Errorf("sockets left open: %v", stats)
	}
}

// send100 sends a packet to each of the two queues. The payload is the index of the queue.
func send100(k *queuetest.Kernel) []*queuetest.Fate {
	return []*queuetest.Fate{k.Send(100, payload("\x00")), k.Send(101, payload("\x01"))}
}

// accounted checks that each packet was answered once, was counted as lost, or found no listener while
// the queue was bound again. One more packet was sent to each queue afterwards.
func accounted(t *testing.T, r *run, outcomes map[queuetest.Outcome]float64, decided []int) {
	t.Helper()
	if decided[1] != 101 {
		t.Errorf("%d packets of the other queue were decided, want 101", decided[1])
	}
	gone := r.metric("netpol_queue_errors_total", "gone") + r.metric("netpol_queue_errors_total", "refused")
	if accepted := r.metric("netpol_queue_verdicts_total", "accept") - 1; accepted < outcomes[queuetest.Accepted] ||
		accepted > outcomes[queuetest.Accepted]+gone {
		t.Errorf("%v verdicts counted and %v gone or refused for %v packets accepted", accepted, gone, outcomes[queuetest.Accepted])
	}
	r.wantMetric("netpol_queue_lost_total", "", outcomes[queuetest.Flushed])
	none := outcomes[queuetest.NoListener] + outcomes[queuetest.NotCopied]
	if outcomes[queuetest.Accepted]+outcomes[queuetest.Flushed]+none != 202 {
		t.Errorf("outcomes %v of 202 packets", outcomes)
	}
	// A queue is bound again within 100 ms, or as soon as binding succeeds.
	if lost := outcomes[queuetest.Flushed] + none; lost > 100 {
		t.Errorf("%v packets lost: %v", lost, outcomes)
	}
}

// A persistent fault makes Live fail, so that the kubelet restarts the agent. When the fault is over,
// the agent continues.
func TestAPersistentFaultIsNotLive(t *testing.T) {
	for _, op := range []queuetest.Operation{
		queuetest.Receive, queuetest.Send, queuetest.Bind, queuetest.Configure, queuetest.Stats,
	} {
		t.Run(string(op), func(t *testing.T) {
			inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
				r := start(t, on(k), always(queue.Accept))
				synctest.Wait()
				f := fault{op: op}
				k.Fail(f.number(), op, queuetest.Always, unix.ENODEV)
				k.Fail(100, queuetest.Receive, attempts, unix.EIO)
				if op == queuetest.Receive {
					k.Fail(100, op, queuetest.Always, unix.EIO)
				}
				seconds := 0
				for ; r.Live(time.Now()) == nil && seconds < 30; seconds++ {
					for range 10 {
						k.Send(100, payload("x"))
						time.Sleep(100 * time.Millisecond)
					}
				}
				if seconds < 9 || seconds > 15 {
					t.Errorf("not live after %d s, want about 10", seconds)
				}
				k.Fail(f.number(), op, 0, nil)
				k.Fail(100, queuetest.Receive, 0, nil)
				time.Sleep(time.Second)
				wantOutcome(t, "packet afterwards", k.Send(100, payload("x")), queuetest.Accepted)
				if err := r.Live(time.Now()); err != nil {
					t.Errorf("not live afterwards: %v", err)
				}
			})
		})
	}
}

// One fault without later calls is not persistent.
func TestAFaultWithoutTrafficIsOver(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		r := start(t, on(k), always(queue.Accept))
		synctest.Wait()
		for _, op := range []queuetest.Operation{queuetest.Receive, queuetest.Send} {
			k.Fail(100, op, attempts, unix.ENOMEM)
			k.Send(100, payload("x"))
			for range 60 {
				time.Sleep(time.Second)
				if err := r.Live(time.Now()); err != nil {
					t.Fatalf("%s: %v", op, err)
				}
			}
		}
	})
}

// Another process may take the number before the queue is bound again.
func TestANumberLostToAnotherProcessIsTakenBack(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		r := start(t, on(k), always(queue.Accept))
		synctest.Wait()
		k.Fail(100, queuetest.Bind, 1, unix.ENOMEM)
		k.Fail(100, queuetest.Receive, attempts, unix.EIO)
		time.Sleep(50 * time.Millisecond)
		release := k.Take(100)
		time.Sleep(time.Minute)
		if err := r.Live(time.Now()); err != nil || r.Bound() {
			t.Errorf("Live %v, bound %v while the number is taken", err, r.Bound())
		}
		release()
		time.Sleep(200 * time.Millisecond)
		wantOutcome(t, "packet afterwards", k.Send(100, payload("x")), queuetest.Accepted)
	})
}

// Pending packets are lost with the socket.
func TestPendingPacketsAreLostWithTheirSocket(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		r := start(t, on(k), always(queue.Defer))
		synctest.Wait()
		f := k.Send(100, payload("x"))
		synctest.Wait()
		k.Fail(100, queuetest.Receive, attempts, unix.EIO)
		time.Sleep(100 * time.Millisecond)
		wantOutcome(t, "pending packet", f, queuetest.Flushed)
		r.wantMetric("netpol_queue_pending", "", 0)
		r.wantMetric("netpol_queue_lost_total", "", 1)
	})
}

// An error of the first binding ends Run only if retrying cannot help.
func TestWhichErrorsOfTheFirstBindingEndRun(t *testing.T) {
	for errno, ends := range map[unix.Errno]bool{
		unix.EPERM: true, unix.EPROTONOSUPPORT: true, unix.EINVAL: true,
		unix.ENOMEM: false, unix.EMFILE: false, unix.EIO: false, unix.ENOBUFS: false, unix.EAGAIN: false,
	} {
		t.Run(unix.ErrnoName(errno), func(t *testing.T) {
			inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
				k.Fail(100, queuetest.Bind, 40, errno)
				r := start(t, on(k), always(queue.Accept))
				time.Sleep(10 * time.Second)
				synctest.Wait()
				if r.Bound() == ends {
					t.Errorf("bound %v", r.Bound())
				}
				if err := r.stop(); errors.Is(err, errno) != ends {
					t.Errorf("Run returned %v", err)
				}
			})
		})
	}
}

// With a broken socket Run ends in time.
func TestRunEndsWithABrokenSocket(t *testing.T) {
	for _, op := range []queuetest.Operation{queuetest.Receive, queuetest.Send, queuetest.Close, queuetest.Bind} {
		t.Run(string(op), func(t *testing.T) {
			inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
				r := start(t, on(k), always(queue.Accept))
				synctest.Wait()
				k.Fail(100, op, queuetest.Always, unix.EIO)
				k.Send(100, payload("x"))
				begin := time.Now()
				if err := r.stop(); err != nil {
					t.Errorf("Run returned %v", err)
				}
				if took := time.Since(begin); took > time.Second {
					t.Errorf("Run ended after %v", took)
				}
				if stats, _ := k.Stats(); len(stats) != 0 {
					t.Errorf("sockets left open: %v", stats)
				}
			})
		})
	}
}
