package reachability

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/tests/model/random"
)

// shareAddresses gives pods addresses that pods of other nodes have, and changes which pod is newer.
func (g gen) shareAddresses(in clusterstate.Input) {
	for _, p := range in.Pods {
		p.CreationTimestamp = metav1.NewTime(time.Unix(int64(g.IntN(3)), 0))
		if other := random.Pick(g, in.Pods...); g.OneIn(2) && !p.Spec.HostNetwork && other.Spec.NodeName != p.Spec.NodeName {
			p.Status.PodIPs = other.Status.PodIPs
		}
		if g.OneIn(5) {
			p.DeletionTimestamp = &metav1.Time{Time: time.Unix(5, 0)}
		}
	}
}

// Each connection of pods with addresses that pods or Nodes elsewhere have, too, is decided as by the
// agents of both nodes, in every form of the answer, whichever pod is asked first.
func TestAddressesInDisputeAreDecidedByTheNodesOfThePods(t *testing.T) {
	counts := map[bool]int{}
	forClusters(t, 200, func(t *testing.T, g gen, in clusterstate.Input) {
		g.shareAddresses(in)
		c, nodes := New(in), agents(in)
		sides := append(c.Pods(FirstCommon), sidesOf(t, c, append(ofNodes, outside[0]))...)
		port := g.connection()
		m := c.Matrix(sides, sides, port, FirstCommon)
		pods := c.Sides(c.Pods(FirstCommon), func(p *corev1.Pod) Side { return Side{Namespace: p.Namespace} })
		o := c.Overview(pods, pods, port, FirstCommon)
		for row, src := range sides {
			for column, dst := range sides {
				a := c.Evaluate(&src, &dst, port, FirstCommon)
				if a.Cause != ByPolicy || !c.disputes.has(src.first(), dst.first()) {
					continue
				}
				want := allowedOn(nodes, a.Query, policy.Egress, &src) && (a.Query.ToHost || allowedOn(nodes, a.Query, policy.Ingress, &dst))
				counts[want]++
				if e := c.Explain(&src, &dst, port, FirstCommon); a.Allowed != want || m.Allowed(row, column) != want || e.Allowed != want {
					t.Errorf("%s -> %s %v: evaluated %v, in the matrix %v, want %v\n%+v", src.Name, dst.Name, port, a.Allowed, m.Allowed(row, column), want, e)
				}
			}
		}
		for i := range pods {
			for j := range pods {
				for p := range o.pairs(i, j) {
					if got := p.ports != noPorts; p.from != p.to && got != c.Evaluate(&o.r.endpoints[p.from], &o.r.endpoints[p.to], port, FirstCommon).Allowed {
						t.Errorf("%s -> %s: %v in the overview", o.r.endpoints[p.from].Name, o.r.endpoints[p.to].Name, got)
					}
				}
			}
		}
		if d, err := Compare(Names{}, c, New(in), PortRanges(c), nil, FirstCommon); err != nil || len(d.Changes) > 0 {
			t.Errorf("it differs from itself: %v, %v", d.Changes, err)
		}
	})
	if counts[true] < 500 || counts[false] < 500 {
		t.Errorf("only %v", counts)
	}
}

// allowedOn reports what the agent of an endpoint's node decides in its direction.
func allowedOn(nodes map[string]*policy.Snapshot, q policy.Query, d policy.Direction, e *Endpoint) bool {
	return e.Kind == External || nodes[e.Node].EvaluateDirection(d, q).Allowed()
}

// A pod is asked for as itself wherever a pod of another node has its address, and refused only where its
// own node gave the address to another pod.
func TestPodsWhoseAddressOthersHaveAreEndpoints(t *testing.T) {
	c := New(clusterstate.Input{Pods: []*corev1.Pod{
		pod("x/a", "n1", "10.0.0.1"), pod("x/b", "n2", "10.0.0.1"), pod("x/c", "n3", "10.0.0.3", "fd00::1"), pod("x/d", "n4", "fd00::1"),
		modified(pod("x/old", "n1", "10.0.0.1"), func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }),
	}})
	for name, addrs := range map[string]int{"x/a": 1, "x/b": 1, "x/c": 2, "x/d": 1} {
		if s, err := c.Endpoint(name); err != nil || len(s.Addrs()) != addrs || s.Node != c.pods[name].Spec.NodeName {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
	if _, err := c.Endpoint("x/old"); err == nil {
		t.Error("a pod has an address that its node gave to another pod")
	}
}
