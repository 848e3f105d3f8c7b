package clusterstate

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

// truth is what really runs on two other nodes, and what n1 has heard of it.
type truth struct {
	*rand.Rand
	c     *Cluster
	pods  []*runningPod
	false map[string]bool        // nodes whose latest report is not true
	whole map[string]bool        // nodes whose latest report has all of their pods
	past  map[string][][]Sandbox // true reports of nodes, which may come again
	log   []string
}

// runningPod is a pod of another node.
type runningPod struct {
	name, uid, node, role string
	addr                  netip.Addr
	known, status         bool // to n1: the pod, and its address
}

// selectedRoles are those of the pods of n1 that policies select, one by each.
var selectedRoles = []string{"server", "guarded", "only", "except", "isolated"}

// allows is what the policies of newTruth say about a packet between a pod of n1 and a peer, which is
// no pod if its role is empty.
func allows(d policy.Direction, subject, peer string) bool {
	switch {
	case d == policy.Ingress && subject == "server":
		return peer == "client"
	case d == policy.Ingress && subject == "guarded":
		return peer != "bad"
	case d == policy.Egress && subject == "only":
		return peer == "db" || peer == ""
	case d == policy.Egress && subject == "except":
		return peer != "secret"
	case d == policy.Egress && subject == "isolated":
		return peer == "db"
	}
	return true
}

func newTruth(random *rand.Rand) *truth {
	t := &truth{Rand: random, c: twoNodes(), false: map[string]bool{}, whole: map[string]bool{}, past: map[string][][]Sandbox{}}
	t.c.Set(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}})
	t.c.Set(netpol("x", "server", `{podSelector: {matchLabels: {role: server}}, ingress: [{from: [{podSelector: {matchLabels: {role: client}}}]}]}`))
	t.c.Set(netpol("x", "isolated", `{podSelector: {matchLabels: {role: isolated}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {role: db}}}]}]}`))
	peers := func(role string) string {
		return `{pods: {namespaceSelector: {}, podSelector: {matchLabels: {role: ` + role + `}}}}`
	}
	t.c.Set(clusterPolicy("guarded", `{tier: Admin, priority: 1, subject: `+peers("guarded")+`, ingress: [{action: Deny, from: [`+peers("bad")+`]}]}`))
	t.c.Set(clusterPolicy("only", `{tier: Admin, priority: 2, subject: `+peers("only")+`, egress: [{action: Accept, to: [`+peers("db")+`]}, {action: Deny, to: [{namespaces: {}}]}]}`))
	t.c.Set(clusterPolicy("except", `{tier: Admin, priority: 3, subject: `+peers("except")+`, egress: [{action: Deny, to: [`+peers("secret")+`]}]}`))
	for i, role := range selectedRoles {
		t.c.Set(compile.NewPod(podWithRole(&runningPod{name: role, node: "n1", role: role}, subjectAddr(i))))
	}
	for i := range 6 {
		p := &runningPod{name: fmt.Sprintf("p%d", i), node: fmt.Sprintf("n%d", 2+t.IntN(2))}
		if t.start(p) {
			t.pods = append(t.pods, p)
		}
	}
	return t
}

// start gives a pod an address of its node, another role and a UID, unless a pod has the address.
func (t *truth) start(p *runningPod) bool {
	addr := netip.AddrFrom4([4]byte{10, p.node[1] - '0', 0, byte(1 + t.IntN(4))})
	if slices.ContainsFunc(t.pods, func(other *runningPod) bool { return other != p && other.addr == addr }) {
		return false
	}
	p.addr, p.role, p.uid = addr, t.role(), fmt.Sprintf("uid-%s-%d", p.name, len(t.log))
	return true
}

func (t *truth) role() string {
	return []string{"client", "bad", "db", "secret", "other"}[t.IntN(5)]
}

func subjectAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 1, 0, byte(1 + i)}) }

// podWithRole is a pod whose status has an address, if that is valid.
func podWithRole(p *runningPod, addr netip.Addr) *corev1.Pod {
	object := newcomer(p.name)
	object.UID, object.Spec.NodeName, object.Labels = types.UID(p.uid), p.node, map[string]string{"role": p.role}
	if addr.IsValid() {
		object.Status.PodIPs = []corev1.PodIP{{IP: addr.String()}}
	}
	return object
}

// step has n1 hear something.
func (t *truth) step() {
	node := fmt.Sprintf("n%d", 2+t.IntN(2))
	if len(t.pods) == 0 || t.IntN(2) == 0 {
		t.report(node)
		return
	}
	p := t.pods[t.IntN(len(t.pods))]
	addr := netip.Addr{}
	switch {
	case p.known && t.IntN(4) == 0: // another pod of that name starts
		started := t.start(p)
		t.whole[p.node] = t.whole[p.node] && !started
		p.status = false
	case p.known && t.IntN(2) == 0:
		p.status, addr = true, p.addr
	default:
		p.known, p.status = true, false
	}
	t.c.Set(compile.NewPod(podWithRole(p, addr)))
	t.log = append(t.log, fmt.Sprintf("pod %+v, with status %v", *p, p.status))
}

// report has a node say what it runs, or nothing, or something else.
func (t *truth) report(node string) {
	var said []Sandbox
	t.false[node], t.whole[node] = false, false
	switch t.IntN(4) {
	case 0:
		t.whole[node] = true
		for _, p := range t.pods {
			if p.node == node {
				said = append(said, sandbox(p.name, p.uid, p.addr.String()))
			}
		}
		t.past[node] = append(t.past[node], said)
	case 1: // late
		if past := t.past[node]; len(past) > 0 {
			said = past[t.IntN(len(past))]
		}
	case 2:
		t.false[node] = true
		for range 1 + t.IntN(8) {
			s := sandbox(fmt.Sprintf("p%d", t.IntN(7)), "uid")
			if i := t.IntN(len(t.pods) + 1); i < len(t.pods) {
				s = sandbox(t.pods[i].name, t.pods[i].uid)
			}
			for range 1 + t.IntN(3) {
				s.Addrs = append(s.Addrs, netip.AddrFrom4([4]byte{10, byte(1 + t.IntN(4)), 0, byte(1 + t.IntN(4))}))
			}
			said = append(said, s)
		}
	}
	t.c.SetSandboxesOf(node, said)
	t.log = append(t.log, fmt.Sprintf("%s reports %v", node, said))
}

// mayBe returns the roles that a peer may have at an address, as far as its own node can make n1 believe
// it: that of the pod there and, if the node's report is false, none, or those of its pods without a
// status. A node that says of its pod that it is elsewhere could write the same into the status.
func (t *truth) mayBe(addr netip.Addr) (roles []string, decided bool) {
	node := fmt.Sprintf("n%d", addr.As4()[1])
	is := &runningPod{}
	for _, p := range t.pods {
		if p.addr == addr && p.known {
			is = p
		}
	}
	roles = []string{is.role}
	if is.status || !t.false[node] {
		return roles, is.status || is.known && t.whole[node]
	}
	roles = append(roles, "")
	for _, p := range t.pods {
		if p.node == node && p.known && !p.status {
			roles = append(roles, p.role)
		}
	}
	return roles, false
}

// check compares the decisions about all packets between n1 and the other nodes with the truth.
func (t *truth) check() error {
	s := t.c.Snapshot()
	for i, subject := range selectedRoles {
		for n := range 8 {
			peer := netip.AddrFrom4([4]byte{10, byte(2 + n/4), 0, byte(1 + n%4)})
			roles, decided := t.mayBe(peer)
			for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
				p := packet.Packet{Src: netip.AddrPortFrom(peer, 1024), Dst: netip.AddrPortFrom(subjectAddr(i), 80), Proto: packet.TCP}
				if d == policy.Egress {
					p.Src, p.Dst = netip.AddrPortFrom(subjectAddr(i), 1024), netip.AddrPortFrom(peer, 80)
				}
				allowed := slices.ContainsFunc(roles, func(role string) bool { return allows(d, subject, role) })
				first, last := s.Evaluate(policy.Query{Packet: p, AwaitSource: true}), s.Evaluate(policy.Query{Packet: p})
				byAddress := d == policy.Ingress && subject == "guarded" // after it has waited, see CN-35
				switch {
				case first.Allowed() && !allowed, last.Allowed() && !allowed && !byAddress:
					return fmt.Errorf("%v of %s with %s, one of %q: %v, and at last %v", d, subject, peer, roles, first, last)
				case decided && first.Allowed() != allowed:
					return fmt.Errorf("%v of %s with %s, which is %q: %v", d, subject, peer, roles, first)
				}
			}
		}
	}
	return nil
}

// TestNoReportAllowsWhatTheTruthDenies: whatever n1 hears in which order, statuses and reports that are
// true, false, late or missing, it allows no packet, in either direction, that the policies deny to the
// pod that is really there. A node can only give one of its own addresses to one of its own pods. What a
// status or a true report says is decided at once.
func TestNoReportAllowsWhatTheTruthDenies(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		world := newTruth(random)
		for range 25 {
			world.step()
			if err := world.check(); err != nil {
				for _, line := range world.log {
					t.Log(line)
				}
				t.Fatal(err)
			}
		}
	}
}

func clusterPolicy(name, spec string) *proposed.ClusterNetworkPolicy {
	p := &proposed.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	mustRead(spec, &p.Spec)
	return p
}
