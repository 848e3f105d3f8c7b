package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
	"sigs.k8s.io/kube-network-policies/pkg/steer"
)

var (
	reused  = netip.MustParseAddr("10.244.1.2")
	reused6 = netip.MustParseAddr("fd00:10:244:1::2")
)

// openPod is a pod that no policy selects. All others are isolated.
const openPod = 2

// ownedBy returns a snapshot in which pods have addresses. Packets of all other
// addresses of the node's ranges are pending.
func ownedBy(pods map[netip.Addr]uint32) *policy.Snapshot {
	endpoints := make(map[netip.Addr]*policy.Endpoint)
	var local []netip.Addr
	for addr, id := range pods {
		endpoints[addr] = &policy.Endpoint{Namespace: "x", Name: fmt.Sprint(id), ID: id}
		if id != openPod {
			endpoints[addr].Ingress = &policy.Chain{}
		}
		local = append(local, addr)
	}
	known := policy.NewEndpoints(endpoints)
	return policy.New(policy.Model{
		Endpoints: known,
		Local:     policy.NewLocal(known, local),
		Ranges:    []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:10:244:1::/64")},
		Isolating: [2]bool{true, true},
	})
}

// node models a node: an agent, its nftables table and the conntrack table. Unlike in the
// kernel, entries of the conntrack table name their pod.
type node struct {
	*owners
	pending  map[netip.Addr]struct{}
	snapshot map[netip.Addr]uint32 // the latest of the agent
	desired  modelSets
	kernel   modelSets                      // applied
	entries  map[netip.Addr]map[uint32]bool // false: from before the owner changed
	lost     []string                       // connections of isolated owners that were removed
	removing map[netip.Addr]uint64          // in progress
}

type modelSets struct {
	steer.Sets
	snapshot map[netip.Addr]uint32
}

func (n *node) start() {
	n.removing, n.kernel.Serial = nil, 0 // of the agent before
	n.owners = newOwners(n.kernel.Owners, func(addrs map[netip.Addr]struct{}) { n.pending = addrs })
}

func (n *node) set() {
	n.desired = modelSets{snapshot: n.snapshot}
	n.addSets(&n.desired.Sets)
}

func (n *node) publish(pods map[netip.Addr]uint32) {
	for a, connected := range n.entries {
		for pod := range connected {
			connected[pod] = connected[pod] && pods[a] == n.snapshot[a]
		}
	}
	n.snapshot = pods
	n.follow(ownedBy(pods))
	n.set()
}

func (n *node) steer() {
	n.kernel = n.desired
	n.markApplied(n.kernel.Serial)
}

func (n *node) beginRemoval() {
	n.removing = n.due()
	for a := range n.removing {
		if owner := n.snapshot[a]; owner != openPod && n.entries[a][owner] {
			n.lost = append(n.lost, fmt.Sprintf("connection of pod %d at %s", owner, a))
		}
		delete(n.entries, a)
	}
}

func (n *node) endRemoval() {
	if len(n.removing) > 0 {
		n.removed(n.removing)
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
		if _, pending := n.pending[a]; !pending {
			n.entries[a][pod] = true
		}
	}
	if n.kernel.snapshot[a] == openPod && !slices.Contains(n.kernel.Stale, a) {
		n.entries[a][openPod] = true
	}
}

// restart starts another agent with the state of the kernel. It removes connections of
// pods whose first record is not applied yet, which takes some milliseconds: an agent
// that ends in this time is a documented exception.
func (n *node) restart() {
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
// applied, and the kernel still accepts a connection of another pod.
func (n *node) opens() (open []string) {
	for a, pods := range n.entries {
		owner, applied := n.snapshot[a], n.stale[a] <= n.kernel.Serial
		for pod := range pods {
			if pod != owner && owner != openPod && applied && !slices.Contains(n.kernel.Stale, a) {
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
		n := &node{entries: make(map[netip.Addr]map[uint32]bool)}
		n.start()
		n.publish(map[netip.Addr]uint32{reused: 2, reused6: 2})
		n.steer()
		var events []string
		for range 60 {
			event := r.IntN(6)
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
			}
			events = append(events, fmt.Sprintf("%s, %v", [...]string{"publish", "steer", "begin", "end", "connect", "restart"}[event], n.snapshot))
			if open := n.opens(); len(open)+len(n.lost) > 0 {
				t.Fatalf("seed %d: open: %v, lost: %v after\n%s", seed, open, n.lost, strings.Join(events, "\n"))
			}
		}
		for range 3 {
			n.steer()
			n.beginRemoval()
			n.endRemoval()
		}
		n.steer()
		if len(n.pending) > 0 || len(n.kernel.Stale) > 0 || n.staleCount() > 0 {
			t.Errorf("seed %d: in the end %v are pending and %v stale", seed, n.pending, n.kernel.Stale)
		}
	}
}

func TestFirstStartKeepsConnections(t *testing.T) {
	n := &node{entries: make(map[netip.Addr]map[uint32]bool)}
	n.start()
	n.publish(map[netip.Addr]uint32{reused: 2})
	n.steer()
	if due := n.due(); len(due) > 0 || len(n.pending) > 0 {
		t.Errorf("due: %v, pending: %v, want nothing", due, n.pending)
	}
}

// Connections of the earlier owner are also removed for a pod that no policy selects,
// without steering it.
func TestPodWithoutPoliciesIsNotSteered(t *testing.T) {
	n := &node{entries: make(map[netip.Addr]map[uint32]bool)}
	n.start()
	n.publish(map[netip.Addr]uint32{reused: 2})
	known := policy.NewEndpoints(map[netip.Addr]*policy.Endpoint{reused: {ID: 3}})
	n.follow(policy.New(policy.Model{Endpoints: known, Local: policy.NewLocal(known, []netip.Addr{reused})}))
	n.set()
	n.steer()
	if len(n.kernel.Stale) > 0 || len(n.pending) > 0 {
		t.Errorf("steered: %v, pending: %v, want nothing", n.kernel.Stale, n.pending)
	}
	if due := n.due(); len(due) != 1 {
		t.Errorf("due: %v, want one address", due)
	}
}

// removals is a remover that fails the first time.
type removals struct {
	addrs  []netip.Addr
	failed bool
}

var errNotPermitted = errors.New("not permitted")

func (l *removals) Remove(_ context.Context, addrs []netip.Addr) error {
	if !l.failed {
		l.failed = true
		return errNotPermitted
	}
	l.addrs = append(l.addrs, addrs...)
	return nil
}

func TestRemovalIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg, l := prometheus.NewRegistry(), &removals{}
		o := newOwners([]steer.Owner{{Addr: reused, Pod: 1}}, func(map[netip.Addr]struct{}) {})
		done := 0
		u := newReuse(o, l, func() { done++ }, reg)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- u.Run(ctx) }()
		defer func() { cancel(); <-ended }()

		o.follow(ownedBy(map[netip.Addr]uint32{reused: 3}))
		var sets steer.Sets
		o.addSets(&sets)
		u.applied(sets.Serial)
		synctest.Wait()
		if err := u.Healthy(); !errors.Is(err, errNotPermitted) || done != 0 || o.staleCount() != 1 {
			t.Errorf("healthy: %v, done %d times, %d stale", err, done, o.staleCount())
		}
		time.Sleep(reuseRetry)
		synctest.Wait()
		if err := u.Healthy(); err != nil || done != 1 || o.staleCount() != 0 || !slices.Equal(l.addrs, []netip.Addr{reused}) {
			t.Errorf("healthy: %v, done %d times, %d stale, removed %v", err, done, o.staleCount(), l.addrs)
		}
		if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
			t.Errorf("%v, %v", problems, err)
		}
	})
}
