// Package newpods reports to agents of other nodes which addresses the new pods of this node have, and asks
// them for theirs: a node knows the addresses of a pod when its network is made, the API only when the
// kubelet has written the pod's status. It owns who asks whom, and which agents are believed (see
// tlskey). What is believed of an answer is up to clusterstate.
package newpods

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
)

// Path is the path where agents report the sandboxes of their new pods.
const Path = "/new-pods"

const (
	// reportFor is how long a sandbox is reported: longer than a slow kubelet takes to write a status.
	reportFor = 2 * time.Minute
	// heartbeat is the interval of lines that show an asker that its connection works.
	heartbeat = 5 * time.Second
	// writeTimeout is how long a line may take to be sent.
	writeTimeout = 5 * time.Second
	// reportRate and reportBurst limit the lines to one agent, per second and at once. It takes bounds.LineRate
	// at most, and more would wait on the way, so that it learned late of the pods that started last.
	reportRate, reportBurst = bounds.LineRate / 2, bounds.LineRate / 2
)

// report is one line of the answer.
type report struct {
	Sandboxes []sandbox `json:"sandboxes"`
}

// Board has the sandboxes that this node reports. Its methods may be called from any goroutine.
type Board struct {
	mu        sync.Mutex
	seen      map[key]time.Time // when a sandbox was first seen
	sandboxes []clusterstate.Sandbox
	changed   chan struct{} // closed when sandboxes change
}

// NewBoard returns a Board without sandboxes.
func NewBoard() *Board {
	return &Board{seen: map[key]time.Time{}, changed: make(chan struct{})}
}

// Set replaces the sandboxes of this node, newest first. It keeps the slice.
func (b *Board) Set(newestFirst []clusterstate.Sandbox) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now, seen := time.Now(), make(map[key]time.Time, len(newestFirst))
	for _, s := range newestFirst {
		k := keyOfSandbox(s)
		since, known := b.seen[k]
		if !known {
			since = now
		}
		seen[k] = since
	}
	b.seen, b.sandboxes = seen, newestFirst
	close(b.changed)
	b.changed = make(chan struct{})
}

// recent returns the sandboxes that are reported now, and a channel that is closed when they change.
func (b *Board) recent() (report, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := report{Sandboxes: []sandbox{}}
	for _, s := range b.sandboxes {
		if len(t.Sandboxes) < bounds.LineSandboxes && time.Since(b.seen[keyOfSandbox(s)]) < reportFor {
			t.Sandboxes = append(t.Sandboxes, fromState(s))
		}
	}
	return t, b.changed
}

// ServeHTTP writes lines of JSON, at once and after changes, until the client closes the connection or has
// to prove itself again. A line has all changes since the one before.
func (b *Board) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	// It is the answer that takes long, not the request. A client that is gone is noticed when a line
	// cannot be sent.
	if control.SetReadDeadline(time.Time{}) != nil {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), bounds.StreamTime)
	defer cancel()
	pace := rate.NewLimiter(reportRate, reportBurst)
	for pace.Wait(ctx) == nil {
		line, changed := b.recent()
		if control.SetWriteDeadline(time.Now().Add(writeTimeout)) != nil || json.NewEncoder(w).Encode(line) != nil || control.Flush() != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-time.After(heartbeat):
		}
	}
}
