package property

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/tests/model/oracle"
	"sigs.k8s.io/kube-network-policies/tests/model/random"
)

// lifeSteps is the number of events in one history.
const lifeSteps = 24

// TestTheNodeDecidesWhoHasAnAddress: NP-51, NP-60, NP-62 to NP-64. Sandboxes are made, statuses are
// written late, nodes boot, pods migrate, names are reused, and the statuses of a node and its pods
// claim addresses of others, and routes change. In whatever order the follower learns of this, each address belongs to
// the pod that the oracle returns, and packets are decided accordingly.
func TestTheNodeDecidesWhoHasAnAddress(t *testing.T) {
	counts := map[string]int{}
	forClusters(t, func(t *testing.T, g *gen, c oracle.Cluster) {
		c.Pods = nil
		l := &life{gen: g, c: c, unknown: map[string]func(){}}
		l.followed = clusterstate.New(clusterstate.Config{NodeName: here, Features: input(c).Features,
			LeadsElsewhere: func(a netip.Addr) bool { return l.routes[a] }})
		for _, o := range objectsOf(c) {
			l.followed.Set(setting(o))
		}
		for step := range lifeSteps {
			what := l.step()
			if g.OneIn(2) {
				continue // the follower learns more before the next snapshot
			}
			l.tellAll()
			if fault := l.compare(counts); fault != "" {
				t.Errorf("step %d (%s): %s\nsandboxes %v\n%s", step, what, fault, l.c.Sandboxes, describe(l.c))
				return
			}
		}
	})
	t.Log(counts)
	for _, what := range []string{"owner by a sandbox", "owner by a status", "owner elsewhere", "owner elsewhere, by a route", "local address without an owner", "address shown by two pods", "address shown elsewhere alone, and not owned", "address outside of all ranges, owned: true", "pod address shown by a node", "packets decided", "packets that await a status"} {
		if counts[what] == 0 {
			t.Errorf("no %s", what)
		}
	}
}

// life simulates the pods of a cluster. Node here follows its own sandboxes and all statuses.
type life struct {
	*gen
	c        oracle.Cluster
	followed *clusterstate.Cluster
	created  int
	routes   map[netip.Addr]bool // oracle.Cluster.Elsewhere as the follower knows it
	unknown  map[string]func()   // updates that the follower has not received yet, by object
}

// step makes one random event happen.
func (l *life) step() string {
	steps := map[string]func(){
		"create": l.create, "make a sandbox": l.makeSandbox, "remove a sandbox": l.removeSandbox, "write a status": l.writeStatus,
		"migrate": l.migrate, "terminate": l.terminate, "end": l.end, "delete": l.remove, "replace": l.replace, "boot": l.boot, "claim for a node": l.claimForNode, "change ranges": l.changeRanges,
		"route": l.route, "move": l.move,
	}
	what := random.Pick(l.gen, "create", "create", "create", "make a sandbox", "make a sandbox", "make a sandbox", "remove a sandbox",
		"write a status", "write a status", "write a status", "migrate", "migrate", "terminate", "end", "delete", "replace", "boot", "claim for a node", "claim for a node", "change ranges", "route", "move", "move")
	steps[what]()
	return what
}

// tellAll delivers all updates, in any order.
func (l *life) tellAll() {
	names := slices.Sorted(maps.Keys(l.unknown))
	l.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names {
		l.unknown[name]()
		if l.OneIn(3) {
			l.followed.Snapshot()
		}
	}
	clear(l.unknown)
}

// create schedules a pod, without addresses.
func (l *life) create() {
	if len(l.c.Pods) > 7 {
		return
	}
	l.created++
	l.add(fmt.Sprintf("p%d", l.created), random.Pick(l.gen, here, here, there))
}

func (l *life) add(name, node string) {
	pod := l.pod(random.Pick(l.gen, namespaceNames...), name, name)
	pod.Spec.NodeName, pod.Spec.HostNetwork = node, l.OneIn(12)
	pod.DeletionTimestamp, pod.Status = nil, corev1.PodStatus{Phase: corev1.PodRunning}
	pod.UID = types.UID(fmt.Sprintf("%d-%d", l.IntN(100), l.created))
	l.set(append(slices.Clone(l.c.Pods), pod), pod)
}

// change replaces a pod with a changed copy.
func (l *life) change(pod *corev1.Pod, how func(*corev1.Pod)) {
	if pod == nil {
		return
	}
	pods, changed := slices.Clone(l.c.Pods), pod.DeepCopy()
	how(changed)
	pods[slices.Index(pods, pod)] = changed
	l.set(pods, changed)
}

// set replaces the pods after one has changed.
func (l *life) set(pods []*corev1.Pod, changed *corev1.Pod) {
	l.c.Pods = pods
	l.unknown[changed.Namespace+"/"+changed.Name] = func() { l.followed.Set(compile.NewPod(changed)) }
}

func (l *life) remove() {
	pod := l.any("")
	if pod == nil {
		return
	}
	l.c.Pods = slices.DeleteFunc(slices.Clone(l.c.Pods), func(p *corev1.Pod) bool { return p == pod })
	l.unknown[pod.Namespace+"/"+pod.Name] = func() { l.followed.Delete(compile.KindPod, pod.Namespace, pod.Name) }
}

// replace replaces a pod with one of the same name and a new UID.
func (l *life) replace() {
	l.created++
	l.change(l.any(""), func(p *corev1.Pod) {
		p.UID, p.Status = types.UID(fmt.Sprintf("%d-%d", l.IntN(100), l.created)), corev1.PodStatus{Phase: corev1.PodPending}
		p.Labels = l.Labels()
	})
}

// any returns a pod of a node, or of any node if node is empty, or nil.
func (l *life) any(node string) *corev1.Pod {
	pods := slices.DeleteFunc(slices.Clone(l.c.Pods), func(p *corev1.Pod) bool { return node != "" && p.Spec.NodeName != node })
	if len(pods) == 0 {
		return nil
	}
	return random.Pick(l.gen, pods...)
}

// addresses returns addresses for pods of a node: few, so that they are reused.
func (l *life) addresses(node string) []netip.Addr {
	n := 1 + l.IntN(3)
	v4, v6 := netip.MustParseAddr(fmt.Sprintf(plans[node].pod4, n)), netip.MustParseAddr(fmt.Sprintf(plans[node].pod6, n))
	return random.Pick(l.gen, []netip.Addr{v4}, []netip.Addr{v4}, []netip.Addr{v6}, []netip.Addr{v4, v6})
}

func (l *life) makeSandbox() {
	if pod := l.any(here); pod != nil {
		if l.OneIn(2) { // otherwise its older sandboxes stay
			l.keepSandboxes(func(s oracle.Sandbox) bool { return s.UID != pod.UID })
		}
		l.announce(pod, l.addresses(random.Pick(l.gen, here, here, here, there)))
	}
}

func (l *life) announce(pod *corev1.Pod, addrs []netip.Addr) {
	l.setSandboxes(append([]oracle.Sandbox{{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Addrs: addrs, Proven: l.OneIn(3)}}, l.c.Sandboxes...))
}

func (l *life) removeSandbox() {
	if len(l.c.Sandboxes) > 0 {
		at := l.IntN(len(l.c.Sandboxes))
		l.setSandboxes(slices.Delete(slices.Clone(l.c.Sandboxes), at, at+1))
	}
}

func (l *life) keepSandboxes(which func(oracle.Sandbox) bool) {
	l.setSandboxes(slices.DeleteFunc(slices.Clone(l.c.Sandboxes), func(s oracle.Sandbox) bool { return !which(s) }))
}

func (l *life) setSandboxes(newestFirst []oracle.Sandbox) {
	l.c.Sandboxes = newestFirst
	l.unknown["sandboxes"] = func() { l.followed.SetSandboxes(announced(newestFirst)) }
}

func announced(newestFirst []oracle.Sandbox) []clusterstate.Sandbox {
	var all []clusterstate.Sandbox
	for _, s := range newestFirst {
		all = append(all, clusterstate.Sandbox(s))
	}
	return all
}

// writeStatus writes the addresses of a pod's newest sandbox to its status, or random ones for pods
// without known sandboxes.
func (l *life) writeStatus() {
	l.change(l.any(""), func(p *corev1.Pod) {
		addrs := l.addresses(p.Spec.NodeName)
		switch {
		case p.Spec.NodeName == there && l.OneIn(4):
			addrs = l.addresses(here)
		case p.Spec.NodeName == there && l.OneIn(8):
			addrs = []netip.Addr{netip.MustParseAddr(outside4), netip.MustParseAddr(outside6)}
		}
		if i := slices.IndexFunc(l.c.Sandboxes, func(s oracle.Sandbox) bool { return s.UID == p.UID }); i >= 0 {
			addrs = l.c.Sandboxes[i].Addrs
		}
		l.show(p, addrs)
	})
}

func (l *life) show(p *corev1.Pod, addrs []netip.Addr) {
	p.Status.Phase, p.Status.PodIPs = corev1.PodRunning, nil
	for _, a := range addrs {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a.String()})
	}
}

// migrate gives the addresses of a pod to the status of a pod of the other node, too.
func (l *life) migrate() {
	if from, to := l.any(here), l.any(there); from != nil && to != nil {
		l.change(to, func(p *corev1.Pod) { l.show(p, compile.Addresses(from)) })
	}
}

// claimForNode writes the status of the other node, often with the address of a pod.
func (l *life) claimForNode() {
	l.changeNode(there, func(n *corev1.Node) {
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: plans[there].node4}}
		for _, a := range l.addresses(random.Pick(l.gen, here, there)) {
			if !l.OneIn(3) {
				n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: a.String()})
			}
		}
	})
}

// move gives the addresses of a pod that has ended unseen to a pod of the other node, with or without a route.
func (l *life) move() {
	from, to := l.any(here), l.any(there)
	if from == nil || to == nil {
		return
	}
	addrs := compile.Addresses(from)
	l.keepSandboxes(func(s oracle.Sandbox) bool { return s.UID != from.UID })
	l.change(to, func(p *corev1.Pod) { l.show(p, addrs) })
	l.reroute(addrs)
}

// route routes addresses elsewhere or back.
func (l *life) route() { l.reroute(l.addresses(random.Pick(l.gen, here, there))) }

func (l *life) reroute(addrs []netip.Addr) {
	l.c.Elsewhere = maps.Clone(l.c.Elsewhere)
	if l.c.Elsewhere == nil {
		l.c.Elsewhere = map[netip.Addr]bool{}
	}
	for _, a := range addrs {
		l.c.Elsewhere[a] = !l.c.Elsewhere[a]
	}
	routes := l.c.Elsewhere
	l.unknown["routes"] = func() {
		l.routes = routes
		l.followed.Rerouted()
	}
}

// changeRanges sets or removes the ranges of a node.
func (l *life) changeRanges() {
	name := random.Pick(l.gen, here, there)
	l.changeNode(name, func(n *corev1.Node) {
		n.Spec.PodCIDR, n.Spec.PodCIDRs = "", random.Pick(l.gen, nil, []string{plans[name].range4}, []string{plans[name].range4, plans[name].range6})
	})
}

func (l *life) changeNode(name string, how func(*corev1.Node)) {
	i := slices.IndexFunc(l.c.Nodes, func(n *corev1.Node) bool { return n.Name == name })
	if i < 0 {
		return
	}
	changed := l.c.Nodes[i].DeepCopy()
	how(changed)
	l.c.Nodes = slices.Clone(l.c.Nodes)
	l.c.Nodes[i] = changed
	l.unknown["node "+name] = func() { l.followed.Set(changed) }
}

func (l *life) terminate() {
	l.change(l.any(""), func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(2000, 0).UTC()} })
}

func (l *life) end() {
	l.change(l.any(""), func(p *corev1.Pod) { p.Status.Phase = random.Pick(l.gen, corev1.PodSucceeded, corev1.PodFailed) })
}

// boot makes new sandboxes for some of the node's pods and shuffles the addresses of their former
// ones.
func (l *life) boot() {
	pods := slices.DeleteFunc(slices.Clone(l.c.Pods), func(p *corev1.Pod) bool { return p.Spec.NodeName != here })
	var addrs [][]netip.Addr
	for _, p := range pods {
		addrs = append(addrs, l.addresses(here))
		if shown := compile.Addresses(p); len(shown) > 0 {
			addrs[len(addrs)-1] = shown
		}
	}
	if l.OneIn(2) {
		l.keepSandboxes(func(oracle.Sandbox) bool { return false })
	}
	l.Shuffle(len(addrs), func(i, j int) { addrs[i], addrs[j] = addrs[j], addrs[i] })
	for i, p := range pods {
		if !l.OneIn(3) { // the rest come back later
			l.announce(p, addrs[i])
		}
	}
}

// compare describes a difference between the follower and the oracle, or returns "".
func (l *life) compare(counts map[string]int) string {
	s := l.followed.Snapshot()
	for _, a := range slices.Concat(addresses4, addresses6) {
		owner, got := oracle.OwnerOf(l.c, here, a), s.Endpoint(a)
		if want := nameOf(owner); want != "" && (got == nil || got.String() != want) || want == "" && got != nil {
			return fmt.Sprintf("%v belongs to %v, want %q", a, got, want)
		}
		l.count(counts, a, owner)
	}
	for name, selection := range selections {
		// Egress may also have pods that await their status.
		if got, want := selection.got(s), selection.want(l.c); name != "egress" && !slices.Equal(got, want) {
			return fmt.Sprintf("selected for %s: got %v, want %v", name, got, want)
		}
	}
	for _, q := range l.questions(l.c) {
		got, want, asked := decisions(l.c, s, q)
		switch src := s.Endpoint(q.Src.Addr()); {
		case !asked:
		case src != nil && src.AwaitsStatus && got.Reason == policy.UnknownPod && got.Direction == policy.Egress:
			counts["packets that await a status"]++
		case disagreement(got, want) != "":
			return fmt.Sprintf("%s of %v: got %v, want %v", disagreement(got, want), q, got, want)
		default:
			counts["packets decided"]++
		}
	}
	return ""
}

func nameOf(pod *corev1.Pod) string {
	if pod == nil {
		return ""
	}
	return pod.Namespace + "/" + pod.Name
}

// count counts the kinds of addresses.
func (l *life) count(counts map[string]int, a netip.Addr, owner *corev1.Pod) {
	shown, shownHere := 0, false
	for _, p := range l.c.Pods {
		if compile.NewPod(p).OwnNetwork && hasAddress(p, a) {
			shown, shownHere = shown+1, shownHere || p.Spec.NodeName == here
		}
	}
	if shown > 1 {
		counts["address shown by two pods"]++
	}
	for _, n := range l.c.Nodes {
		if shown > 0 && slices.Contains(compile.NewNode(n).Addrs, a) {
			counts["pod address shown by a node"]++
		}
	}
	switch {
	case shown > 0 && (a.String() == outside4 || a.String() == outside6):
		counts[fmt.Sprintf("address outside of all ranges, owned: %v", owner != nil)]++
	case owner == nil && shown > 0 && !shownHere:
		counts["address shown elsewhere alone, and not owned"]++
	case owner == nil && shownHere:
		counts["local address without an owner"]++
	case owner == nil:
	case owner.Spec.NodeName != here && shownHere && l.c.Elsewhere[a]:
		counts["owner elsewhere, by a route"]++
	case owner.Spec.NodeName != here:
		counts["owner elsewhere"]++
	case slices.ContainsFunc(l.c.Sandboxes, func(s oracle.Sandbox) bool { return s.UID == owner.UID && slices.Contains(s.Addrs, a) }):
		counts["owner by a sandbox"]++
	default:
		counts["owner by a status"]++
	}
}
