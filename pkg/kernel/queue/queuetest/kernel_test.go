package queuetest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/queue"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/queue/queuetest"
)

// Queues runs on the fake as on the real kernel. Only Config.Kernel differs.
func Example() {
	kernel := queuetest.New()
	queues, err := queue.New(queue.Config{First: 100, Count: 1, Kernel: kernel, Registerer: prometheus.NewRegistry()})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error)
	handler := func(q queue.Packet) queue.Verdict {
		if string(q.Payload) == "friend" {
			return queue.Accept
		}
		return queue.Drop
	}
	go func() { ended <- queues.Run(ctx, handler, ready) }()
	close(ready)
	if err := kernel.AwaitListener(ctx, 100); err != nil {
		fmt.Println(err)
	}
	for _, payload := range []string{"friend", "foe"} {
		fate := kernel.Send(100, queuetest.Packet{Payload: []byte(payload)})
		<-fate.Done()
		fmt.Println(payload, fate.Outcome())
	}
	cancel()
	fmt.Println(<-ended)
	// Output:
	// friend accepted
	// foe dropped
	// <nil>
}

func TestPacketsWithoutListener(t *testing.T) {
	k := queuetest.New()
	wantOutcome(t, k.Send(100, queuetest.Packet{}), queuetest.NoListener)
	wantOutcome(t, k.Send(100, queuetest.Packet{Bypass: true}), queuetest.Bypassed)

	// Without a copy mode packets are dropped, even with bypass.
	s := bind(t, k, 100)
	wantOutcome(t, k.Send(100, queuetest.Packet{Bypass: true}), queuetest.NotCopied)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	wantOutcome(t, k.Send(100, queuetest.Packet{Bypass: true}), queuetest.Bypassed)
}

func TestANumberIsBoundOnce(t *testing.T) {
	k := queuetest.New()
	release := k.Take(100)
	if _, err := k.Bind(t.Context(), 100, queue.Config{}); !errors.Is(err, queue.ErrTaken) {
		t.Errorf("second bind: %v, want ErrTaken", err)
	}
	bind(t, k, 101)
	release()
	bind(t, k, 100)
}

func TestAwaitListenerEndsWithItsContext(t *testing.T) {
	k := queuetest.New()
	bind(t, k, 100) // without a copy mode
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := k.AwaitListener(ctx, 100); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}

func TestMalformedRequestsAreErrors(t *testing.T) {
	s := bind(t, queuetest.New(), 100)
	for _, request := range []string{"short", "no netlink message at all, but long"} {
		if err := s.Send([]byte(request)); err == nil {
			t.Errorf("%q was accepted", request)
		}
	}
}

func bind(t *testing.T, k *queuetest.Kernel, number uint16) queue.Socket {
	t.Helper()
	s, err := k.Bind(t.Context(), number, queue.Config{MaxLen: 1, ReceiveBuffer: 1 << 16})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func wantOutcome(t *testing.T, f *queuetest.Fate, want queuetest.Outcome) {
	t.Helper()
	if got := f.Outcome(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
