package status

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
)

// accepted are policies that are enforced as written, and whose conditions do not say so yet. Their writes take
// turns one by one, so that those of a problem, which authors need, wait for at most one of them: at the first
// start there are as many as policies.
type accepted struct {
	queue workqueue.TypedInterface[types.NamespacedName]

	mu    sync.Mutex
	turns map[types.NamespacedName]struct{} // that may write now
}

func newAccepted() *accepted {
	return &accepted{queue: workqueue.NewTyped[types.NamespacedName](), turns: make(map[types.NamespacedName]struct{})}
}

// run gives a turn to one policy that is due after each wait, until the queue is shut down.
func (a *accepted) run(ctx context.Context, wait func(context.Context) error, due func(types.NamespacedName) bool, write func(types.NamespacedName)) {
	for wait(ctx) == nil {
		key, shutdown := a.queue.Get()
		for ; !shutdown && !due(key); key, shutdown = a.queue.Get() {
			a.queue.Done(key) // written meanwhile, or a problem now
		}
		if shutdown {
			return
		}
		a.queue.Done(key)
		a.mu.Lock()
		a.turns[key] = struct{}{}
		a.mu.Unlock()
		write(key)
	}
}

// turn reports whether it is the policy's turn, which this ends.
func (a *accepted) turn(key types.NamespacedName) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, its := a.turns[key]
	delete(a.turns, key)
	return its
}
