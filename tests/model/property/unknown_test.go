package property

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/tests/model/oracle"
	"sigs.k8s.io/kube-network-policies/tests/model/random"
)

// unknown is an address whose pod the node does not know.
type unknown struct {
	snapshot *policy.Snapshot // the node's view
	c        oracle.Cluster   // with all pods but the one at addr
	addr     netip.Addr
	who      []*corev1.Pod // the pods that may be there, nil for no pod
	from, to bool          // whether packets from addr and to addr may wait
	// denialsStay is set if packets that are denied without a pod at the address are denied with
	// any pod there (CN-35).
	denialsStay bool
	// exact is set if packets with the same decision for all of who do not wait for long.
	exact bool
}

// unknowns are the reasons why an address is unknown. Each returns such an address of the cluster,
// invalid if there is none.
var unknowns = []struct {
	name string
	draw func(*gen, oracle.Cluster) unknown
}{
	{"here, not listed yet", func(g *gen, c oracle.Cluster) unknown {
		u := unknown{c: c, snapshot: clusterstate.Compile(input(c)), addr: g.unused(here), who: g.someOn(here), from: true, to: true}
		for _, pod := range u.who {
			pod.Spec.Containers, pod.Spec.InitContainers = nil, nil // only labels count (NP-55)
		}
		return u.inRange(here)
	}},
	{"here, of a pod that has another one by now", func(g *gen, c oracle.Cluster) unknown {
		u := unknown{c: c, addr: g.unused(here), who: g.someOn(here), from: true, to: true}
		pod := u.who[0]
		followed := clusterstate.New(clusterstate.Config{NodeName: here, Features: input(c).Features})
		for _, o := range objectsOf(c.With(pod, u.addr)) {
			followed.Set(setting(o))
		}
		followed.SetSandboxes([]clusterstate.Sandbox{{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Addrs: []netip.Addr{u.addr.Next()}}})
		u.snapshot = followed.Snapshot()
		for _, pod := range u.who {
			pod.Spec.Containers, pod.Spec.InitContainers = nil, nil
		}
		return u
	}},
	{"elsewhere, not listed yet", func(g *gen, c oracle.Cluster) unknown {
		u := unknown{c: c, snapshot: clusterstate.Compile(input(c)), addr: g.unused(there), who: g.someOn(there), to: true, denialsStay: true}
		return u.inRange(there)
	}},
	{"shown by pods of two nodes of one range", func(g *gen, c oracle.Cluster) unknown {
		third := g.node("third", plans[there])
		u := unknown{addr: g.unused(there), who: append(g.someOn(there)[:1], g.someOn(third.Name)[0]), to: true, denialsStay: true}
		u.c = c.With(u.who[0], u.addr)
		u.c.Nodes = append(slices.Clone(c.Nodes), third)
		u.c.Pods = append(u.c.Pods, c.With(u.who[1], u.addr).Pods[len(c.Pods)])
		u.snapshot = clusterstate.Compile(input(u.c))
		if u.snapshot.Endpoint(u.addr) != nil {
			return unknown{}
		}
		return u.inRange(there)
	}},
	{"without a status", func(g *gen, c oracle.Cluster) unknown {
		u := unknown{addr: g.unused(there), who: []*corev1.Pod{nil}, from: true, exact: true}
		c.Pods = append(slices.Clone(c.Pods), g.someOn(there)...)
		for _, pod := range c.Pods {
			if read := compile.NewPod(pod); read.OwnNetwork && len(read.Addrs) == 0 && read.Node == there {
				u.who = append(u.who, pod)
			}
		}
		u.c, u.snapshot = c, clusterstate.Compile(input(c))
		return u.inRange(there)
	}},
	{"without a node", func(g *gen, c oracle.Cluster) unknown {
		pod := g.someOn("")[0]
		u := unknown{addr: g.unused(there), who: []*corev1.Pod{nil}, from: true, to: true}
		u.c = c.With(pod, u.addr)
		u.snapshot = clusterstate.Compile(input(u.c))
		return u
	}},
}

// unused returns an address in a node's range that generated pods never have.
func (g *gen) unused(node string) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf(random.Pick(g, plans[node].pod4, plans[node].pod6), podsPerNode+1))
}

// someOn returns pods of a node without addresses.
func (g *gen) someOn(node string) []*corev1.Pod {
	var pods []*corev1.Pod
	for i := range 4 {
		pod := g.pod(random.Pick(g, namespaceNames...), fmt.Sprintf("%s%d", node, i), fmt.Sprintf("%s%d", node, i))
		pod.DeletionTimestamp, pod.Spec.NodeName, pod.Spec.HostNetwork = nil, node, false
		pod.CreationTimestamp, pod.Status = metav1.Time{}, corev1.PodStatus{Phase: corev1.PodPending}
		pods = append(pods, pod)
	}
	return pods
}

// inRange returns u if its address is in the ranges of a node: packets of other addresses do not
// wait.
func (u unknown) inRange(node string) unknown {
	if !ofNode(u.c, node, u.addr) {
		return unknown{}
	}
	return u
}

// TestPacketsWaitForWhoMayBeThere: NP-55, NP-61 and CN-35. Whatever the reason why an address is
// unknown, a packet that does not wait gets the decision that it would get for every pod that may
// be there.
func TestPacketsWaitForWhoMayBeThere(t *testing.T) {
	counts := map[string]int{}
	forClusters(t, func(t *testing.T, g *gen, c oracle.Cluster) {
		for _, kind := range unknowns {
			u := kind.draw(g, c)
			for _, q := range u.questions(g) {
				what, fault := u.decide(q)
				if fault != "" {
					t.Errorf("%s: %s\n%s", kind.name, fault, describe(u.c))
					return
				}
				counts[kind.name+": "+what]++
			}
		}
	})
	t.Log(counts)
	for _, kind := range unknowns {
		for _, what := range []string{"waits", "allow", "deny"} {
			if counts[kind.name+": "+what] == 0 {
				t.Errorf("%s: no packet: %s", kind.name, what)
			}
		}
	}
	if counts["without a status: waits for long"] == 0 {
		t.Error("no packet waits for long")
	}
}

// questions returns questions about packets from or to the address.
func (u unknown) questions(g *gen) (questions []question) {
	for _, other := range slices.Concat(addresses4, addresses6) {
		switch {
		case !u.addr.IsValid() || other == u.addr || other.Is4() != u.addr.Is4():
		case isHere(u.addr) && u.snapshot.IsLocal(other) && !ofNode(u.c, here, other): // they share no range
		default:
			if u.from {
				questions = append(questions, g.question(u.addr, other), g.question(u.addr, other))
			}
			if u.to {
				questions = append(questions, g.question(other, u.addr), g.question(other, u.addr))
			}
		}
	}
	return slices.DeleteFunc(questions, func(q question) bool { return q.toHost })
}

// decide returns the outcome for a packet, or a description of what is wrong with it.
func (u unknown) decide(q question) (what, fault string) {
	query := q.query()
	query.AwaitSource = true
	d := u.snapshot.Evaluate(query)
	what = [...]string{d.Action.String(), "waits", "waits for long"}[d.Wait()]
	if d.Wait() == policy.ShortWait || d.Wait() == policy.LongWait && !u.exact || u.denialsStay && !d.Allowed() {
		return what, ""
	}
	who := u.whoOwns()
	if len(who) == 0 {
		return "no pod may be there", ""
	}
	allowed, waits := oracle.EvaluateOneOf(u.c, here, q.oracleQuery(), u.addr, who)
	switch {
	case d.Wait() == policy.LongWait && (waits || len(who) < len(u.who)):
	case waits:
		return "", fmt.Sprintf("%v: %v, and the oracle: it depends on who is there", q, d)
	case allowed != d.Allowed():
		return "", fmt.Sprintf("%v: %v, and the oracle: allowed %v", q, d, allowed)
	}
	return what, ""
}

// whoOwns returns those of who that would own the address.
func (u unknown) whoOwns() []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(u.who), func(pod *corev1.Pod) bool {
		return nameOf(oracle.OwnerOf(u.c.With(pod, u.addr), here, u.addr)) != nameOf(pod)
	})
}
