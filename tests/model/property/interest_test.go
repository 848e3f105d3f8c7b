package property

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/tests/model/needed"
	"sigs.k8s.io/kube-network-policies/tests/model/oracle"
	"sigs.k8s.io/kube-network-policies/tests/model/random"
)

// TestInterestDecidesAsAllPods: a node that knows only the pods that its policies need decides
// every packet like one that knows all pods. While some of them are not listed yet, it decides the
// same or waits.
func TestInterestDecidesAsAllPods(t *testing.T) {
	counts := map[string]int{}
	forClusters(t, func(t *testing.T, g *gen, c oracle.Cluster) {
		if !g.OneIn(4) {
			g.crowd(&c)
		}
		g.giveEachItsOwn(&c)
		c = g.audited(c)
		questions, limit, half := g.questions(c), 1+g.IntN(8), g.Uint64()
		if fault := mistaken(c, questions, limit, half, counts); fault != "" {
			again := func(c oracle.Cluster) string { return mistaken(c, questions, limit, half, map[string]int{}) }
			c = shrink(c, func(c oracle.Cluster) bool { return again(c) != "" })
			t.Errorf("%s\n%s", again(c), describe(c))
		}
	})
	t.Log(counts)
	for _, what := range []string{"pods left out", "pods needed", "interest of all pods", "packets of pods left out", "packets that wait: allow", "packets that wait: deny"} {
		if counts[what] == 0 {
			t.Errorf("no %s", what)
		}
	}
}

// crowd replaces the pods with more pods of both nodes, which run and have addresses, and adds
// policies. Often there are no administrators' policies.
func (g *gen) crowd(c *oracle.Cluster) {
	if g.OneIn(2) {
		c.AdminNetworkPolicies, c.BaselineAdminNetworkPolicies, c.ClusterNetworkPolicies = nil, nil, nil
	}
	c.Namespaces, c.Pods = nil, nil
	for _, name := range namespaceNames {
		c.Namespaces = append(c.Namespaces, g.Namespace(name))
	}
	for i, node := range []string{here, there} {
		for n := range podsPerNode {
			name := fmt.Sprintf("p%d", i*podsPerNode+n)
			pod := g.pod(random.Pick(g, namespaceNames...), name, name)
			pod.Spec.NodeName, pod.Spec.HostNetwork, pod.Status.Phase = node, false, corev1.PodRunning
			pod.Status.PodIPs = []corev1.PodIP{{IP: fmt.Sprintf(plans[node].pod4, n+1)}, {IP: fmt.Sprintf(plans[node].pod6, n+1)}}
			pod.Status.PodIP = pod.Status.PodIPs[0].IP
			c.Pods = append(c.Pods, pod)
		}
	}
	for i := range 6 {
		c.NetworkPolicies = append(c.NetworkPolicies, g.NetworkPolicy(random.Pick(g, namespaceNames...), fmt.Sprintf("more%d", i)))
	}
}

// giveEachItsOwn leaves one pod at each address, and no pod of another node in the ranges of
// this one. The other pods have no address yet.
func (g *gen) giveEachItsOwn(c *oracle.Cluster) {
	used := map[netip.Addr]bool{}
	for i, pod := range c.Pods {
		addrs := compile.NewPod(pod).Addrs
		if slices.ContainsFunc(addrs, func(a netip.Addr) bool {
			return used[a] || pod.Spec.NodeName != here && isHere(a) || pod.Spec.NodeName == here && !ofNode(*c, here, a) && !g.OneIn(8)
		}) {
			c.Pods[i] = pod.DeepCopy()
			c.Pods[i].Status.PodIP, c.Pods[i].Status.PodIPs = "", nil
			continue
		}
		for _, a := range addrs {
			used[a] = true
		}
	}
}

// mistaken describes a packet that is decided differently from a node that knows all pods, or
// returns "". half chooses the sets of pods that are listed first.
func mistaken(c oracle.Cluster, questions []question, limit int, half uint64, counts map[string]int) string {
	in := input(c)
	all, pods := clusterstate.Compile(in), in.Pods
	narrow := needed.New(in)
	narrow.Snapshot()
	sets := clusterstate.Cover(narrow.Needs(), limit)
	if slices.Contains(sets, clusterstate.PodSet{}) {
		counts["interest of all pods"]++
	}
	var some []clusterstate.PodSet
	for i, set := range sets {
		if half>>i&1 == 1 {
			some = append(some, set)
		}
	}
	list := func(sets []clusterstate.PodSet) *policy.Snapshot {
		needed.List(narrow, sets, pods)
		return narrow.Snapshot()
	}
	if fault := compareNarrow(all, list(some), questions, len(some) < len(sets), counts); fault != "" {
		return fmt.Sprintf("with %v of %v listed: %s", some, sets, fault)
	}
	if fault := compareNarrow(all, list(sets), questions, false, counts); fault != "" {
		return fmt.Sprintf("with %v: %s", sets, fault)
	}
	for _, pod := range pods {
		if needed.InAny(sets, pod) {
			counts["pods needed"]++
		} else if pod.Spec.NodeName != here {
			counts["pods left out"]++
		}
	}
	return ""
}

// compareNarrow describes a packet that the two snapshots decide differently, or returns "".
func compareNarrow(all, narrow *policy.Snapshot, questions []question, mayWait bool, counts map[string]int) string {
	pairs := map[*policy.Snapshot]*policy.Snapshot{all: narrow, ifEnforced(all): ifEnforced(narrow)}
	for all, narrow := range pairs {
		for _, q := range questions {
			left := all.Endpoint(q.Src.Addr()) != nil && narrow.Endpoint(q.Src.Addr()) == nil
			if left {
				counts["packets of pods left out"]++
			}
			for _, await := range []bool{false, true} {
				query := q.query()
				query.AwaitSource = await
				want, got := all.Evaluate(query), narrow.Evaluate(query)
				switch {
				case reflect.DeepEqual(got, want), left && (q.toHost || q.Src.Addr() == q.Dst.Addr()): // only the source's own node sees these
				case mayWait && (got.Reason == policy.UnknownPod || got.Reason == policy.UnknownSource):
					counts[fmt.Sprintf("packets that wait: %v", want.Action)]++
				case mayWait && got.Action == want.Action: // by another rule
				case left && got.Reason == policy.UnknownSource: // a new pod may have the address
				default:
					return fmt.Sprintf("%v: %v, and %v if all pods are known", q, got, want)
				}
			}
		}
	}
	return ""
}
