package property

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/tests/model/oracle"
)

// TestNewPodsAreDecidedAsWhenTheyAreKnown: NP-55, NP-61 and CN-35. If a packet of a pod without a
// known address is decided at once, the decision is the same as when the address is known.
// Otherwise the packet waits.
func TestNewPodsAreDecidedAsWhenTheyAreKnown(t *testing.T) {
	counts := map[string]int{}
	forClusters(t, func(t *testing.T, g *gen, c oracle.Cluster) {
		questions := g.questions(c)
		if fault := hasty(c, questions, counts); fault != "" {
			c = shrink(c, func(c oracle.Cluster) bool { return hasty(c, questions, map[string]int{}) != "" })
			t.Errorf("%s\n%s", hasty(c, questions, counts), describe(c))
		}
	})
	t.Log(counts)
	for _, outcome := range []string{"here: waits", "here: decided", "there: waits", "there: decided"} {
		if counts[outcome] == 0 {
			t.Errorf("no packet %s", outcome)
		}
	}
}

// hasty describes a packet that is decided before its sender is known and differently afterwards,
// or returns "".
func hasty(c oracle.Cluster, questions []question, counts map[string]int) string {
	known := clusterstate.Compile(input(c))
	for i, pod := range c.Pods {
		if pod.Spec.NodeName == "" {
			continue
		}
		before := c
		before.Pods = slices.Clone(c.Pods)
		before.Pods[i] = pod.DeepCopy()
		before.Pods[i].Status.PodIP, before.Pods[i].Status.PodIPs = "", nil
		s := clusterstate.Compile(input(before))
		for _, q := range questions {
			src := q.Src.Addr()
			e := known.Endpoint(src)
			if e == nil || e.Namespace != pod.Namespace || e.Name != pod.Name || s.Endpoint(src) != nil || q.toHost || !ofNode(c, pod.Spec.NodeName, src) {
				continue
			}
			if pod.Spec.NodeName == here && known.Endpoint(q.Dst.Addr()) != nil && !ofNode(c, here, q.Dst.Addr()) {
				continue // a peer counts as unknown if it is in the same range as the subject
			}
			query := q.query()
			query.AwaitSource = true
			d, now := s.Evaluate(query), known.Evaluate(q.query())
			if d.Reason == policy.UnknownPod || d.Reason == policy.UnknownSource {
				counts[pod.Spec.NodeName+": waits"]++
				continue
			}
			counts[pod.Spec.NodeName+": decided"]++
			if d.Allowed() != now.Allowed() {
				return fmt.Sprintf("%v of %s/%s: %v before it is known, %v then", q, pod.Namespace, pod.Name, d, now)
			}
		}
	}
	return ""
}

// ofNode reports whether an address is in the ranges of a node. If pod ranges are known,
// its pods have no other addresses.
func ofNode(c oracle.Cluster, node string, addr netip.Addr) bool {
	return slices.ContainsFunc(c.Nodes, func(n *corev1.Node) bool {
		return n.Name == node && slices.ContainsFunc(compile.NewNode(n).PodRanges, func(r netip.Prefix) bool { return r.Contains(addr) })
	})
}
