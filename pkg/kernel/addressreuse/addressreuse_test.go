package addressreuse

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer"
)

var (
	reused  = netip.MustParseAddr("10.244.1.2")
	reused6 = netip.MustParseAddr("fd00:10:244:1::2")
)

// openPod is a pod that no policy selects. All others are isolated.
const openPod = 2

// steered reports whether packets of a stale address are steered by a snapshot: those of all
// addresses but of an open pod.
func steered(pods map[netip.Addr]uint32) func(netip.Addr) bool {
	return func(a netip.Addr) bool { return pods[a] != openPod }
}

// node models a node: an agent, its nftables table and the conntrack table. Unlike in the
// kernel, entries of the conntrack table name their pod.
type node struct {
	*Tracker
	held     map[netip.Addr]struct{}
	snapshot map[netip.Addr]uint32 // the latest of the agent
	desired  modelSets
	kernel   modelSets                      // applied
	entries  map[netip.Addr]map[uint32]bool // false: from before the owner changed
	renewed  map[netip.Addr]map[uint32]bool // the kernel's record of those accepted for an owner of a stale address
	lost     []string                       // connections of isolated owners that were removed
	removing map[netip.Addr]uint64          // in progress
}

type modelSets struct {
	steer.Sets
	snapshot map[netip.Addr]uint32
}

func (n *node) start() {
	n.removing, n.kernel.Serial = nil, 0 // of the agent before
	n.Tracker = New(Config{
		Recorded: n.kernel.Owners,
		Hold:     func(addrs map[netip.Addr]struct{}) { n.held = addrs },
	})
}

func (n *node) set() {
	n.desired = modelSets{snapshot: n.snapshot}
	n.AddSets(&n.desired.Sets)
}

func (n *node) publish(pods map[netip.Addr]uint32) {
	for a, connected := range n.entries {
		for pod := range connected {
			connected[pod] = connected[pod] && pods[a] == n.snapshot[a]
		}
	}
	n.snapshot = pods
	n.Follow(pods, steered(pods))
	n.set()
}

func (n *node) steer() {
	n.kernel = n.desired
	n.Applied(n.kernel.Serial)
}

func (n *node) forget() {
	due := n.due(false)
	for a := range due {
		delete(n.renewed, a)
	}
	n.forgotten(due, nil)
}

func (n *node) beginRemoval() {
	n.removing = n.due(true)
	for a := range n.removing {
		if owner := n.snapshot[a]; owner != openPod && n.entries[a][owner] && !n.renewed[a][owner] {
			n.lost = append(n.lost, fmt.Sprintf("connection of pod %d at %s", owner, a))
		}
		maps.DeleteFunc(n.entries[a], func(pod uint32, _ bool) bool { return !n.renewed[a][pod] })
	}
}

func (n *node) endRemoval() {
	if len(n.removing) > 0 {
		n.removed(n.removing, nil)
		n.removing = nil
		n.set()
	}
}

// connect opens connections of a: one that the agent accepts for the owner in its
// snapshot, and one for the owner in nftables if that pod's packets are not steered.
func (n *node) connect(a netip.Addr) {
	if n.entries[a] == nil {
		n.entries[a] = make(map[uint32]bool)
	}
	if pod, ok := n.snapshot[a]; ok {
		if _, held := n.held[a]; !held {
			n.entries[a][pod] = true
			if slices.Contains(n.kernel.Stale, a) {
				n.renew(a, pod)
			}
		}
	}
	if n.kernel.snapshot[a] == openPod && !slices.Contains(n.kernel.Stale, a) {
		n.entries[a][openPod] = true
	}
}

func (n *node) renew(a netip.Addr, pod uint32) {
	if n.renewed[a] == nil {
		n.renewed[a] = make(map[uint32]bool)
	}
	n.renewed[a][pod] = true
}

// restart starts another agent with the state of the kernel. It removes connections of
// pods whose first record is not applied yet, which takes some milliseconds: an agent
// that ends in this time is a documented exception. Those of addresses that are stale then
// are decided again.
func (n *node) restart() {
	for _, a := range n.kernel.Stale {
		for pod := range n.entries[a] {
			n.entries[a][pod] = false
		}
	}
	recorded := make(map[netip.Addr]bool)
	for _, o := range n.kernel.Owners {
		recorded[o.Addr] = true
	}
	for a := range n.entries {
		if !recorded[a] {
			delete(n.entries, a)
		}
	}
	n.start()
	n.publish(n.snapshot)
}

// opens returns the entries by which the successor of a pod can be reached: the change is
// applied, and the kernel still accepts a connection of another pod. Before what was accepted
// for another one is forgotten, packets are held.
func (n *node) opens() (open []string) {
	for a, pods := range n.entries {
		owner, applied := n.snapshot[a], n.stale[a] <= n.kernel.Serial
		_, held := n.held[a]
		for pod := range pods {
			if pod != owner && owner != openPod && applied && !held && (!slices.Contains(n.kernel.Stale, a) || n.renewed[a][pod]) {
				open = append(open, fmt.Sprintf("connection of pod %d at %s, which is pod %d's", pod, a, owner))
			}
		}
	}
	return open
}

// TestNoOrderOfEventsOpensASuccessor runs random sequences of owner changes, syncs of the
// table, removals, connections and restarts.
func TestNoOrderOfEventsOpensASuccessor(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 0))
		n := &node{entries: make(map[netip.Addr]map[uint32]bool), renewed: make(map[netip.Addr]map[uint32]bool)}
		n.start()
		n.publish(map[netip.Addr]uint32{reused: 2, reused6: 2})
		n.steer()
		var events []string
		for range 60 {
			event := r.IntN(7)
			switch event {
			case 0:
				pods := make(map[netip.Addr]uint32)
				for _, a := range []netip.Addr{reused, reused6} {
					if id := r.Uint32N(4); id > 0 {
						pods[a] = 1 + id
					}
				}
				n.publish(pods)
			case 1:
				n.steer()
			case 2:
				n.beginRemoval()
			case 3:
				n.endRemoval()
			case 4:
				n.connect(reused)
				n.connect(reused6)
			case 5:
				n.restart()
			case 6:
				n.forget()
			}
			events = append(events, fmt.Sprintf("%s, %v", [...]string{"publish", "steer", "begin", "end", "connect", "restart", "forget"}[event], n.snapshot))
			if open := n.opens(); len(open)+len(n.lost) > 0 {
				t.Fatalf("seed %d: open: %v, lost: %v after\n%s", seed, open, n.lost, strings.Join(events, "\n"))
			}
		}
		for range 3 {
			n.steer()
			n.forget()
			n.beginRemoval()
			n.endRemoval()
		}
		n.steer()
		if len(n.held) > 0 || len(n.kernel.Stale) > 0 || len(n.stale) > 0 {
			t.Errorf("seed %d: in the end %v are held and %v stale", seed, n.held, n.kernel.Stale)
		}
	}
}

func TestFirstStartKeepsConnections(t *testing.T) {
	n := &node{entries: make(map[netip.Addr]map[uint32]bool)}
	n.start()
	n.publish(map[netip.Addr]uint32{reused: 2})
	n.steer()
	if due := n.due(false); len(due) > 0 || len(n.held) > 0 {
		t.Errorf("due: %v, held: %v, want nothing", due, n.held)
	}
}

// Connections of the earlier owner are also removed for a pod that no policy selects,
// without steering it.
func TestPodWithoutPoliciesIsNotSteered(t *testing.T) {
	n := &node{entries: make(map[netip.Addr]map[uint32]bool)}
	n.start()
	n.publish(map[netip.Addr]uint32{reused: 3})
	n.publish(map[netip.Addr]uint32{reused: openPod})
	n.steer()
	if len(n.kernel.Stale) > 0 || len(n.held) > 0 {
		t.Errorf("steered: %v, held: %v, want nothing", n.kernel.Stale, n.held)
	}
	if due := n.due(false); len(due) != 1 {
		t.Errorf("due: %v, want one address", due)
	}
}

var errNotPermitted = errors.New("not permitted")

func TestRemovalIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var done atomic.Int32
		failed, removed := false, make(chan []netip.Addr, 2)
		tr := New(Config{
			Recorded: []steer.Owner{{Addr: reused, Pod: 1}},
			Hold:     func(map[netip.Addr]struct{}) {},
			Forget:   func(context.Context, []netip.Addr) error { return nil },
			Remove: func(_ context.Context, addrs []netip.Addr) error {
				if !failed {
					failed = true
					return errNotPermitted
				}
				removed <- addrs
				return nil
			},
			Changed: func() { done.Add(1) },
		})
		stale := func() int {
			tr.mu.Lock()
			defer tr.mu.Unlock()
			return len(tr.stale)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- tr.Run(ctx) }()
		defer func() { cancel(); <-ended }()

		pods := map[netip.Addr]uint32{reused: 3}
		tr.Follow(pods, steered(pods))
		var sets steer.Sets
		tr.AddSets(&sets)
		tr.Applied(sets.Serial)
		synctest.Wait()
		if err := tr.Healthy(); !errors.Is(err, errNotPermitted) || done.Load() != 0 || stale() != 1 {
			t.Errorf("healthy: %v, done %d times, %d stale", err, done.Load(), stale())
		}
		time.Sleep(retryInterval)
		synctest.Wait()
		if err := tr.Healthy(); err != nil || done.Load() != 1 || stale() != 0 || len(removed) != 1 {
			t.Fatalf("healthy: %v, done %d times, %d stale, removed %d times", err, done.Load(), stale(), len(removed))
		}
		if addrs := <-removed; !slices.Equal(addrs, []netip.Addr{reused}) {
			t.Errorf("removed %v", addrs)
		}
	})
}

// TestPacketsDoNotWaitForARemoval: not even for one that never ends, and those of further owners only until
// the connections that were accepted for earlier ones are forgotten.
func TestPacketsDoNotWaitForARemoval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var held atomic.Int64
		var faulty atomic.Bool
		tr := New(Config{
			Recorded: []steer.Owner{{Addr: reused, Pod: 1}, {Addr: reused6, Pod: 1}},
			Hold:     func(addrs map[netip.Addr]struct{}) { held.Store(int64(len(addrs))) },
			Forget: func(_ context.Context, addrs []netip.Addr) error {
				if n := held.Load(); int(n) != len(addrs) {
					t.Errorf("%v are forgotten, and %d are held", addrs, n)
				}
				if faulty.Load() {
					return errNotPermitted
				}
				return nil
			},
			Remove: func(ctx context.Context, _ []netip.Addr) error { <-ctx.Done(); return ctx.Err() },
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- tr.Run(ctx) }()
		defer func() { cancel(); <-ended }()
		for id := uint32(3); id < 8; id++ {
			pods := map[netip.Addr]uint32{reused: id, reused6: id}
			tr.Follow(pods, steered(pods))
			var sets steer.Sets
			tr.AddSets(&sets)
			if len(sets.Stale) != 2 || held.Load() != 2 {
				t.Errorf("owner %d: stale %v, %d held", id, sets.Stale, held.Load())
			}
			faulty.Store(true)
			tr.Applied(sets.Serial)
			synctest.Wait()
			if held.Load() != 2 || !errors.Is(tr.Healthy(), errNotPermitted) {
				t.Errorf("owner %d: %d are held although none are forgotten, healthy: %v", id, held.Load(), tr.Healthy())
			}
			faulty.Store(false)
			time.Sleep(retryInterval)
			synctest.Wait()
			if held.Load() != 0 || tr.Healthy() != nil {
				t.Errorf("owner %d: %d are held while connections are removed, healthy: %v", id, held.Load(), tr.Healthy())
			}
		}
	})
}
