package oracle

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

// here is the evaluating node in these tests, there is another node.
const here, there = "here", "there"

// outside is an address that belongs to no pod or node of the cluster.
const outside = "203.0.113.9"

// world builds a cluster from its objects, with all feature gates enabled.
func world(objects ...any) Cluster {
	c := Cluster{EndPort: true, SCTP: true, NodePeers: true, DomainNames: true}
	for _, o := range objects {
		c.Add(o.(metav1.Object))
	}
	return c
}

// labels reads "app=web,tier=" as labels.
func labels(text string) map[string]string {
	m := map[string]string{}
	for pair := range strings.SplitSeq(text, ",") {
		if key, value, ok := strings.Cut(pair, "="); ok {
			m[key] = value
		}
	}
	return m
}

// pod returns a running pod on node here; name is namespace/name and ips are separated by commas.
func pod(name, ips, labelText string) *corev1.Pod {
	ns, name, _ := strings.Cut(name, "/")
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: labels(labelText)},
		Spec:       corev1.PodSpec{NodeName: here},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for ip := range strings.SplitSeq(ips, ",") {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	return p
}

// policy returns the NetworkPolicy namespace/name with this spec.
func policy(t *testing.T, name, spec string) *networkingv1.NetworkPolicy {
	t.Helper()
	ns, name, _ := strings.Cut(name, "/")
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	unmarshal(t, spec, &p.Spec)
	return p
}

// anp, banp and cnp return the policy of that kind with this spec.
func anp(t *testing.T, name, spec string) *v1alpha1.AdminNetworkPolicy {
	t.Helper()
	p := &v1alpha1.AdminNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	unmarshal(t, spec, &p.Spec)
	return p
}

func banp(t *testing.T, name, spec string) *v1alpha1.BaselineAdminNetworkPolicy {
	t.Helper()
	p := &v1alpha1.BaselineAdminNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	unmarshal(t, spec, &p.Spec)
	return p
}

func cnp(t *testing.T, name, spec string) *proposed.ClusterNetworkPolicy {
	t.Helper()
	p := &proposed.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	unmarshal(t, spec, &p.Spec)
	return p
}

func unmarshal(t *testing.T, text string, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(text), into); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

// node returns a node with an address, or several separated by commas.
func node(name, ips, labelText string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels(labelText)}}
	for ip := range strings.SplitSeq(ips, ",") {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	return n
}

// probe returns the packet that goes from src to dst.
func probe(src, dst string, proto packet.Proto, port uint16) packet.Packet {
	return packet.Packet{
		Src:   netip.AddrPortFrom(netip.MustParseAddr(src), 40000),
		Dst:   netip.AddrPortFrom(netip.MustParseAddr(dst), port),
		Proto: proto,
	}
}

func tcp(src, dst string, port uint16) packet.Packet { return probe(src, dst, packet.TCP, port) }

// check compares the decision of node here with the expected one.
func check(t *testing.T, c Cluster, p packet.Packet, want bool) {
	t.Helper()
	checkQuery(t, c, Query{Packet: p}, want)
}

func checkQuery(t *testing.T, c Cluster, q Query, want bool) {
	t.Helper()
	if got := Evaluate(c, here, q); got.Allowed() != want {
		t.Errorf("%+v: got %v, want allowed = %v", q, got, want)
	}
}
