package queue_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/queue"
)

func (r *run) awaitBound() {
	r.t.Helper()
	eventually(r.t, "the queues are bound", func() bool {
		select {
		case <-r.done:
			r.t.Fatalf("Run returned %v", r.err)
		default:
		}
		return r.Bound()
	})
}

func (r *run) awaitEmpty(label string) {
	r.t.Helper()
	eventually(r.t, "nothing waits", func() bool { return r.metric("nfqueue_queue_total", label) == 0 })
}

func TestKernelAccountsForEveryPacketOfAFlood(t *testing.T) {
	if !inNetNS(t) {
		return
	}
	conn, port := receiver(t)
	queueUDP(t, port, "100")
	r := start(t, queue.Config{First: 100, Count: 1}, always(queue.Drop))
	r.awaitBound()

	const packets = 30000
	send(t, sender(t, port), packets)
	r.awaitEmpty("100")
	dropped := r.metric("nfqueue_queue_dropped", "100") + r.metric("nfqueue_user_dropped", "100")
	// The last verdicts reach the kernel shortly before they are counted.
	eventually(t, fmt.Sprintf("all but %v packets are answered", dropped), func() bool {
		return r.metric("netpol_queue_verdicts_total", "drop") == packets-dropped
	})
	if dropped == packets {
		t.Error("no packet was answered")
	}
	r.wantMetric("netpol_queue_errors_total", "gone", 0)
	r.wantMetric("netpol_queue_errors_total", "refused", 0)
	r.wantMetric("netpol_queue_errors_total", "malformed", 0)
	received(t, conn, 0)
}

func TestKernelKeepsABurstUntilReady(t *testing.T) {
	if !inNetNS(t) {
		return
	}
	conn, port := receiver(t)
	queueUDP(t, port, "100")
	ready := make(chan struct{})
	r := startGated(t, queue.Config{First: 100, Count: 1}, always(queue.Accept), ready)
	r.awaitBound()

	const burst = 8192
	send(t, sender(t, port), burst)
	r.wantMetric("nfqueue_queue_total", "100", burst)
	close(ready)
	received(t, conn, burst)
	r.wantMetric("nfqueue_queue_dropped", "100", 0)
	r.wantMetric("nfqueue_user_dropped", "100", 0)
}

func TestKernelSharesPacketsAmongQueues(t *testing.T) {
	if !inNetNS(t) {
		return
	}
	conn, port := receiver(t)
	queueUDP(t, port, "100:103")
	r := start(t, queue.Config{First: 100, Count: 4}, always(queue.Accept))
	r.awaitBound()
	// The kernel chooses a queue by the addresses, so different ports would not help.
	const addresses, each = 64, 20
	for i := range addresses {
		send(t, senderTo(t, fmt.Sprintf("127.0.1.%d", i), port), each)
	}
	received(t, conn, addresses*each)
	for number := 100; number < 104; number++ {
		if got := r.metric("nfqueue_packet_id", strconv.Itoa(number)); got == 0 || int(got)%each != 0 {
			t.Errorf("queue %d had %v packets, want some whole pairs of addresses", number, got)
		}
	}
	eventually(t, "all are counted", func() bool { return r.metric("netpol_queue_verdicts_total", "accept") == addresses*each })
}

func TestKernelServesTheFirstQueueFirst(t *testing.T) {
	if !inNetNS(t) {
		return
	}
	conn, port := receiver(t)
	low, lowPort := receiver(t)
	queueUDP(t, port, "100")
	queueUDP(t, lowPort, "101")
	const each = 1000
	var ports []uint16 // of the destination, in the order of decisions
	ready := make(chan struct{})
	r := startGated(t, queue.Config{First: 100, Count: 1}, func(p queue.Packet) queue.Verdict {
		ports = append(ports, binary.BigEndian.Uint16(p.Payload[22:]))
		return queue.Accept
	}, ready, queue.Config{First: 101, Count: 1})
	r.awaitBound()
	send(t, sender(t, lowPort), each)
	send(t, sender(t, port), each)
	close(ready)
	received(t, conn, each)
	received(t, low, each)
	if err := r.stop(); err != nil {
		t.Errorf("Run returned %v", err)
	}
	want := slices.Concat(slices.Repeat([]uint16{uint16(port)}, each), slices.Repeat([]uint16{uint16(lowPort)}, each))
	if !slices.Equal(ports, want) {
		t.Errorf("decided packets to the ports %v, want %d to %d first", ports, each, port)
	}
}

func TestKernelNumberIsTakenOverWhenItIsFree(t *testing.T) {
	if !inNetNS(t) {
		return
	}
	conn, port := receiver(t)
	queueUDP(t, port, "100")
	old := start(t, queue.Config{First: 100, Count: 1}, always(queue.Drop))
	old.awaitBound()
	client := sender(t, port)

	// For the kernel, another socket is like another process.
	next := start(t, queue.Config{First: 100, Count: 2}, always(queue.Accept))
	eventually(t, "the free number is bound", func() bool { return next.metric("netpol_queue_bound", "101") == 1 })
	send(t, client, 10)
	eventually(t, "the old one has answered", func() bool { return old.metric("netpol_queue_verdicts_total", "drop") == 10 })
	if next.Bound() {
		t.Error("bound while the number is taken")
	}
	if err := old.stop(); err != nil {
		t.Errorf("old Run returned %v", err)
	}
	next.awaitBound()
	send(t, client, 10)
	received(t, conn, 10)
}

func TestKernelBindErrors(t *testing.T) {
	if !inNetNS(t) {
		return
	}
	r := start(t, queue.Config{First: 100, Count: 1}, always(queue.Drop))
	r.awaitBound()
	cfg := queue.Config{First: 100, Count: 1, Registerer: prometheus.NewRegistry()}
	_, err := queue.Host{}.Bind(context.Background(), 100, cfg)
	if !errors.Is(err, queue.ErrTaken) || err.Error() != "queue 100 is taken by another process" {
		t.Errorf("taken number: %v, want ErrTaken about queue 100", err)
	}

	// This thread ends with the test, so that no other test lacks the capability.
	runtime.LockOSThread()
	dropNetAdmin(t)
	for _, number := range []uint16{100, 101} {
		_, err = queue.Host{}.Bind(context.Background(), number, cfg)
		if !errors.Is(err, unix.EPERM) || errors.Is(err, queue.ErrTaken) || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
			t.Errorf("without CAP_NET_ADMIN: %v, want EPERM that names it", err)
		}
	}
}

func dropNetAdmin(t *testing.T) {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
	data[0].Effective &^= 1 << unix.CAP_NET_ADMIN
	if err := unix.Capset(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
}

func TestKernelQueueBindsWhilePacketsFlood(t *testing.T) {
	if !inNetNS(t) {
		return
	}
	_, port := receiver(t)
	queueUDP(t, port, "100:101")
	var stop atomic.Bool
	flooded := make(chan struct{})
	go func() {
		defer close(flooded)
		for conn := sender(t, port); !stop.Load(); {
			conn.Write([]byte("flood"))
		}
	}()
	for range 20 { // restarts
		r := start(t, queue.Config{First: 100, Count: 2}, always(queue.Drop))
		r.awaitBound()
		eventually(t, "packets are answered", func() bool { return r.metric("netpol_queue_verdicts_total", "drop") > 1000 })
		if err := r.stop(); err != nil {
			t.Errorf("Run returned %v", err)
		}
		if answered := r.metric("netpol_queue_errors_total", "gone"); answered != 0 {
			t.Errorf("%v verdicts too late", answered)
		}
	}
	stop.Store(true)
	<-flooded
}

func TestKernelReportsTheInputHookAndLinks(t *testing.T) {
	if !inNetNS(t) {
		return
	}
	conn, port := receiver(t)
	queueUDP(t, port, "100") // at output
	command(t, "iptables-nft", "-A", "INPUT", "-p", "udp", "--dport", fmt.Sprint(port), "-j", "NFQUEUE", "--queue-num", "101")
	toHost, link, out := make(chan bool, 2), make(chan uint32, 2), make(chan uint32, 2)
	r := start(t, queue.Config{First: 100, Count: 2}, func(q queue.Packet) queue.Verdict {
		toHost <- q.ToHost
		link <- q.Link
		out <- q.OutLink
		return queue.Accept
	})
	r.awaitBound()
	send(t, sender(t, port), 1)
	received(t, conn, 1)
	if first, second := <-toHost, <-toHost; first || !second {
		t.Errorf("ToHost is %v at output and %v at input", first, second)
	}
	if first, second := <-link, <-link; first != 0 || second != 1 { // lo
		t.Errorf("Link is %d at output and %d at input", first, second)
	}
	if first, second := <-out, <-out; first != 1 || second != 0 {
		t.Errorf("OutLink is %d at output and %d at input", first, second)
	}
}

func TestKernelHandsOverWholePackets(t *testing.T) {
	if !inNetNS(t) {
		return
	}
	conn, port := receiver(t)
	queueUDP(t, port, "100")
	lengths := make(chan int, 1)
	r := start(t, queue.Config{First: 100, Count: 1, CopyRange: queue.MaxCopyRange}, func(q queue.Packet) queue.Verdict {
		lengths <- len(q.Payload)
		return queue.Accept
	})
	r.awaitBound()
	client := sender(t, port)
	const headers = 28 // of IPv4 and UDP
	for _, length := range []int{0, 512, 4096, queue.MaxCopyRange - headers} {
		if _, err := client.Write(make([]byte, length)); err != nil {
			t.Fatal(err)
		}
		received(t, conn, 1)
		if got := <-lengths; got != length+headers {
			t.Errorf("%d bytes for a datagram of %d, want %d", got, length, length+headers)
		}
	}
}

func TestKernelPacketsSurviveAPanic(t *testing.T) {
	if !inNetNS(t) {
		return
	}
	conn, port := receiver(t)
	queueUDP(t, port, "100")
	var decided atomic.Int32
	r := start(t, queue.Config{First: 100, Count: 1}, func(queue.Packet) queue.Verdict {
		if decided.Add(1)%10 == 0 {
			panic("tenth")
		}
		return queue.Accept
	})
	r.awaitBound()
	send(t, sender(t, port), 1000)
	received(t, conn, 900)
	r.awaitEmpty("100")
	r.wantMetric("netpol_queue_errors_total", "panic", 100)
}

func TestKernelPacketsAreAnsweredAtTheEnd(t *testing.T) {
	if !inNetNS(t) {
		return
	}
	conn, port := receiver(t)
	queueUDP(t, port, "100")
	answer := make(chan struct{})
	r := start(t, queue.Config{First: 100, Count: 1}, func(queue.Packet) queue.Verdict {
		<-answer
		return queue.Accept
	})
	r.awaitBound()
	const packets = 300 // a few batches, which take less than drainTime
	send(t, sender(t, port), packets)
	r.cancel()
	close(answer)
	if err := r.stop(); err != nil {
		t.Errorf("Run returned %v", err)
	}
	received(t, conn, packets)
}

func TestKernelReceiveBufferOverflows(t *testing.T) {
	if !inNetNS(t) {
		return
	}
	conn, port := receiver(t)
	queueUDP(t, port, "100")
	ready := make(chan struct{})
	r := startGated(t, queue.Config{First: 100, Count: 1, ReceiveBuffer: 1 << 16}, always(queue.Accept), ready)
	r.awaitBound()
	const packets = 1000
	client := sender(t, port)
	send(t, client, packets)
	lost := r.metric("nfqueue_user_dropped", "100")
	t.Logf("%v of %d packets found the buffer full", lost, packets)
	if lost == 0 {
		t.Error("the buffer did not overflow")
	}
	close(ready)
	received(t, conn, packets-int(lost))
	if r.metric("netpol_queue_errors_total", "overflow") == 0 {
		t.Error("ENOBUFS was not counted")
	}
	send(t, client, 10)
	received(t, conn, 10)
}

func TestKernelFailsOpenWhenTheQueueIsFull(t *testing.T) {
	if !inNetNS(t) {
		return
	}
	conn, port := receiver(t)
	queueUDP(t, port, "100:101")
	r := startGated(t, queue.Config{First: 100, Count: 2, MaxLen: 10, FailOpen: true}, always(queue.Drop), nil)
	r.awaitBound()
	send(t, sender(t, port), 100)
	received(t, conn, 90)
	if err := r.stop(); err != nil {
		t.Errorf("Run returned %v", err)
	}
	received(t, conn, 0) // the waiting packets were dropped
}

func TestKernelMarksAcceptedPackets(t *testing.T) {
	if !inNetNS(t) {
		return
	}
	conn, port := receiver(t)
	command(t, "iptables-nft", "-t", "mangle", "-A", "OUTPUT", "-j", "MARK", "--set-mark", "0x4000")
	queueUDP(t, port, "100")
	// After the queue only the packet with both marks may pass.
	command(t, "iptables-nft", "-t", "mangle", "-A", "POSTROUTING", "-m", "mark", "!", "--mark", "0x4100", "-j", "DROP")
	r := start(t, queue.Config{First: 100, Count: 1, AcceptMark: 0x100}, always(queue.Accept))
	r.awaitBound()
	send(t, sender(t, port), 10)
	received(t, conn, 10)
}
