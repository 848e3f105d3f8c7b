package property

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
	"sigs.k8s.io/kube-network-policies/tests/model/oracle"
)

// TestFollowingEqualsCompiling: a Cluster that follows changes object by object decides at any time
// as one that is compiled from the current objects.
func TestFollowingEqualsCompiling(t *testing.T) {
	changes := 0
	forClusters(t, func(t *testing.T, g *gen, end oracle.Cluster) {
		end = g.audited(end)
		clusters := []oracle.Cluster{g.audited(g.cluster()), g.audited(g.cluster()), end}
		if g.OneIn(2) { // cached evaluations survive changes of pods, namespaces and nodes
			for i := range clusters {
				clusters[i] = withPoliciesOf(clusters[i], end)
			}
		}
		histories := historiesOf(clusters...)
		cfg := clusterstate.Config{NodeName: here, Features: input(end).Features}
		followed := &published{Cluster: clusterstate.New(cfg)}
		for follow(g, followed, histories) && !t.Failed() {
			changes++
			if g.OneIn(2) {
				followed.snapshot()
			}
			if g.OneIn(8) {
				compareFollowed(t, g, followed, nowOf(end, histories))
			}
		}
		compareFollowed(t, g, followed, end)
	})
	t.Logf("%d changes", changes)
}

// published uses a Cluster as the agent does: it takes a snapshot only if verdicts may have
// changed.
type published struct {
	*clusterstate.Cluster
	last    *policy.Snapshot
	changed bool
}

func (p *published) Set(o any) bool {
	changed := p.Cluster.Set(o)
	p.changed = p.changed || changed
	return changed
}

func (p *published) Delete(kind *compile.Kind, namespace, name string) bool {
	changed := p.Cluster.Delete(kind, namespace, name)
	p.changed = p.changed || changed
	return changed
}

// snapshot returns the current snapshot.
func (p *published) snapshot() *policy.Snapshot {
	if p.changed || p.last == nil {
		p.last, p.changed = p.Snapshot(), false
	}
	return p.last
}

// withPoliciesOf returns c with the policies of a different cluster.
func withPoliciesOf(c, other oracle.Cluster) oracle.Cluster {
	c.NetworkPolicies = other.NetworkPolicies
	c.AdminNetworkPolicies = other.AdminNetworkPolicies
	c.BaselineAdminNetworkPolicies = other.BaselineAdminNetworkPolicies
	c.ClusterNetworkPolicies = other.ClusterNetworkPolicies
	return c
}

func compareFollowed(t *testing.T, g *gen, followed *published, now oracle.Cluster) {
	t.Helper()
	compiled, snapshot := clusterstate.Compile(input(now)), followed.snapshot()
	if diff := difference(compiled, snapshot, g.questions(now)); diff != "" {
		t.Errorf("compiled at once and followed: %s\n%s", diff, describe(now))
	}
	if diff := difference(ifEnforced(compiled), ifEnforced(snapshot), g.questions(now)); diff != "" {
		t.Errorf("compiled at once and followed, if audited policies were enforced: %s\n%s", diff, describe(now))
	}
}

// follower is a Cluster, or one that is published.
type follower interface {
	Set(o any) bool
	Delete(kind *compile.Kind, namespace, name string) bool
}

// follow sets the next version of a random object. It returns false after every object has reached
// its last version.
func follow(g *gen, c follower, histories []*history) bool {
	h := unfinished(g, histories)
	if h == nil {
		return false
	}
	switch from, to := h.step(); {
	case to != nil:
		c.Set(setting(to))
	case from != nil:
		c.Delete(kindOf(from), from.GetNamespace(), from.GetName())
	}
	return true
}

// kindOf returns the kind of an object.
func kindOf(o object) *compile.Kind {
	switch o.(type) {
	case *corev1.Namespace:
		return compile.KindNamespace
	case *corev1.Node:
		return compile.KindNode
	case *corev1.Pod:
		return compile.KindPod
	case *proposed.CIDRGroup:
		return compile.KindCIDRGroup
	}
	return compile.KindOf(o)
}

// setting converts an object to the argument of clusterstate.Cluster.Set.
func setting(o object) any {
	if pod, ok := o.(*corev1.Pod); ok {
		return compile.NewPod(pod)
	}
	return o
}

// nowOf returns the current objects, with the feature gates of a cluster.
func nowOf(c oracle.Cluster, histories []*history) oracle.Cluster {
	now := oracle.Cluster{EndPort: c.EndPort, SCTP: c.SCTP, NodePeers: c.NodePeers, DomainNames: c.DomainNames, IngressByAddress: c.IngressByAddress, ServiceAccounts: c.ServiceAccounts, GroupPeers: c.GroupPeers}
	for _, h := range histories {
		if h.now != nil {
			now.Add(h.now)
		}
	}
	return now
}
