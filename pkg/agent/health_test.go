package agent

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/queue"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/queue/queuetest"
)

// TestAnAgentListensWhenAllQueuesAreBound has two queues, one of which another process has bound
// for a while. An agent that does not listen is not ready and does not take over the table.
func TestAnAgentListensWhenAllQueuesAreBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := queuetest.New()
		release := k.Take(112)
		a := &agent{}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 2)
		for _, number := range []uint16{111, 112} {
			q, err := queue.New(queue.Config{First: number, Count: 1, Kernel: k, Registerer: prometheus.NewRegistry()})
			if err != nil {
				t.Fatal(err)
			}
			a.queues = append(a.queues, handledQueues{q, func(queue.Packet) queue.Verdict { return queue.Drop }, alwaysReady})
		}
		if a.listening() == nil || (agents{a}).Listening() {
			t.Error("listening before any queue is bound")
		}
		for _, loop := range a.queueLoops() {
			go func() { done <- loop(ctx) }()
		}
		synctest.Wait()
		if a.listening() == nil || (agents{a}).Listening() {
			t.Error("listening while another process has bound a queue")
		}
		release()
		time.Sleep(time.Minute) // of the clock of the bubble
		if err := a.listening(); err != nil || !(agents{a}).Listening() {
			t.Errorf("not listening with all queues bound: %v", err)
		}
		cancel()
		for range a.queues {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}
