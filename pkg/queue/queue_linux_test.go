package queue_test

import (
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/queue"
)

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
	eventually(t, "nothing waits", func() bool { return r.metric("nfqueue_queue_total", "100") == 0 })
	dropped := r.metric("nfqueue_queue_dropped", "100") + r.metric("nfqueue_user_dropped", "100")
	answered := r.metric("netpol_queue_verdicts_total", "drop")
	if answered+dropped != packets || answered == 0 {
		t.Errorf("%v answered and %v dropped by the kernel, want %d together", answered, dropped, packets)
	}
	t.Logf("%v answered, %v dropped by the kernel", answered, dropped)
	received(t, conn, 0)
}

func (r *run) awaitBound() {
	r.t.Helper()
	eventually(r.t, "the queues are bound", r.Bound)
}
