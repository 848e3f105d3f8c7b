package main

import (
	"fmt"
	"maps"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/tests/packets/apiserver"
	"sigs.k8s.io/kube-network-policies/tests/speed/bench/cluster"
)

const (
	// perNode is the number of pods on a node, including the agent's.
	perNode = 100
	// ownNode is the lab's name of the agent's node.
	ownNode = "node-1"
)

// size is the size of a cluster.
type size struct {
	pods, policies, namespaces int
	shape                      string // which pods the policies select: "spread" or "all"
}

func (s size) String() string {
	return fmt.Sprintf("policies=%d/pods=%d", s.policies, s.pods)
}

// pod returns a pod of the cluster in its n-th life. The first perNode pods are on the
// agent's node, ten consecutive pods are replicas, and each has an address of each family,
// which its successors keep.
func (s size) pod(i, life int) *corev1.Pod {
	set := fmt.Sprintf("%08x", i/10)
	namespace := cluster.NamespaceName(i / 10 % s.namespaces)
	name := fmt.Sprintf("web-%s-%06d-%d", set, i, life)
	if i < perNode {
		return newPod(namespace, name, set, ownNode,
			netip.AddrFrom4([4]byte{10, 244, 1, byte(100 + i)}), netip.MustParseAddr(fmt.Sprintf("fd00:10:244:1::%x", 100+i)))
	}
	return newPod(namespace, name, set, fmt.Sprintf("node-%d", 1+i/perNode),
		netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), netip.MustParseAddr(fmt.Sprintf("fd00::%x:%x", i>>16, i&0xffff)))
}

// relabelled returns a copy of p with another label.
func relabelled(p *corev1.Pod, key, value string) *corev1.Pod {
	q := *p
	q.Labels = maps.Clone(p.Labels)
	q.Labels[key] = value
	return &q
}

// heartbeat returns a copy of p with changes that affect no policy.
func heartbeat(p *corev1.Pod, now time.Time) *corev1.Pod {
	q := *p
	q.Status.Conditions = append([]corev1.PodCondition(nil), p.Status.Conditions...)
	q.Status.Conditions[1].LastProbeTime = metav1.NewTime(now)
	return &q
}

// nodes returns the number of nodes. The first one is the agent's.
func (s size) nodes() int { return (s.pods + perNode - 1) / perNode }

// node returns a node that is not the agent's, with a current heartbeat of its kubelet.
func node(i int, now time.Time) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i)}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(now)}}
	return n
}

// fill stores the cluster's objects in the server.
func (s size) fill(server *apiserver.Server, own *corev1.Node) error {
	objects := []apiserver.Object{own}
	for i := 2; i <= s.nodes(); i++ {
		objects = append(objects, node(i, time.Time{}))
	}
	for _, ns := range cluster.Namespaces(s.namespaces * perNode) {
		objects = append(objects, ns)
	}
	for _, p := range s.networkPolicies() {
		objects = append(objects, p)
	}
	for _, o := range objects {
		if _, err := server.Put(o); err != nil {
			return err
		}
	}
	for i := range s.pods {
		if _, err := server.Put(s.pod(i, 0)); err != nil {
			return err
		}
	}
	return nil
}

// networkPolicies returns policies whose rules never match. They select all pods of their
// namespace, which is the server's for the shape "all".
func (s size) networkPolicies() []*networkingv1.NetworkPolicy {
	policies := cluster.Policies(cluster.NamespaceName(0), s.policies)
	if s.shape == "spread" {
		for j, p := range policies {
			p.Namespace = cluster.NamespaceName(j % s.namespaces)
		}
	}
	return policies
}
