package compile_test

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// input is a cluster to compile.
type input struct{ clusterstate.Input }

// fixture is a cluster of the namespaces x, y, z with the pods a, b, c each. Namespaces have the
// label ns, pods the label pod. The pods of x and y run on n1, the enforcing node, those of z on
// n2. Each pod has an IPv4 and an IPv6 address and serves http (TCP 80) and dns (UDP and TCP 53).
func fixture() input {
	in := input{clusterstate.Input{NodeName: "n1", Features: compile.AllFeatures()}}
	for i, ns := range []string{"x", "y", "z"} {
		in.Namespaces = append(in.Namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: ns, Labels: map[string]string{"ns": ns, "kubernetes.io/metadata.name": ns},
		}})
		for j, name := range []string{"a", "b", "c"} {
			in.Pods = append(in.Pods, pod(ns, name, node(ns), fmt.Sprintf("10.0.%d.%d", i, j+1), fmt.Sprintf("fd00:%d::%d", i, j+1)))
		}
	}
	return in
}

func node(namespace string) string {
	if namespace == "z" {
		return "n2"
	}
	return "n1"
}

func pod(ns, name, node string, ips ...string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: map[string]string{"pod": name}},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Ports: []corev1.ContainerPort{
			{Name: "http", ContainerPort: 80, Protocol: corev1.ProtocolTCP},
			{Name: "dns", ContainerPort: 53, Protocol: corev1.ProtocolUDP},
			{Name: "dns", ContainerPort: 53},
		}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, ip := range ips {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	return p
}

func (in *input) pod(name string) *corev1.Pod {
	for _, p := range in.Pods {
		if p.Namespace+"/"+p.Name == name {
			return p
		}
	}
	panic("no pod " + name)
}

// netpol reads the spec of a policy of namespace x.
func netpol(t *testing.T, name, spec string) *networkingv1.NetworkPolicy {
	t.Helper()
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name, Generation: 1}}
	if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
		t.Fatalf("policy %s: %v", name, err)
	}
	return p
}

// check evaluates packets by the snapshot of in. Each line of probes is "allow|deny FROM TO
// PROTOCOL[/PORT]", where a side is a pod (its IPv4 address), a pod with ":6" (its IPv6 address),
// or an address. The line may end with "host", for a packet to the evaluating node itself, or with
// a name that FROM has learned for TO.
func check(t *testing.T, in input, probes string) *policy.Snapshot {
	t.Helper()
	s := clusterstate.Compile(in.Input)
	for line := range strings.Lines(probes) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		f := strings.Fields(line)
		proto, port, _ := strings.Cut(f[3], "/")
		n, _ := strconv.ParseUint(port, 10, 16)
		p := packet.Packet{
			Src:   netip.AddrPortFrom(in.addr(t, f[1]), 40000),
			Dst:   netip.AddrPortFrom(in.addr(t, f[2]), uint16(n)),
			Proto: protos[proto],
		}
		q := policy.Query{Packet: p}
		if len(f) > 4 {
			q.ToHost, q.Learned = f[4] == "host", knows{f[4]}
		}
		if d := s.Evaluate(q); d.Action.String() != f[0] {
			t.Errorf("%s: %v", line, d)
		}
	}
	return s
}

// knows are the names that every pod has learned for every address.
type knows policy.Names

func (k knows) Names(_, _ netip.Addr) *policy.Names { return (*policy.Names)(&k) }

var protos = map[string]packet.Proto{
	"tcp": packet.TCP, "udp": packet.UDP, "sctp": packet.SCTP, "icmp": packet.ICMP, "icmpv6": packet.ICMPv6,
	"udplite": 136, "esp": 50, "unknown": packet.Unknown,
}

func (in *input) addr(t *testing.T, side string) netip.Addr {
	t.Helper()
	name, v6 := strings.CutSuffix(side, ":6")
	if !strings.Contains(name, "/") {
		return netip.MustParseAddr(side)
	}
	ips := in.pod(name).Status.PodIPs
	if v6 {
		return netip.MustParseAddr(ips[1].IP)
	}
	return netip.MustParseAddr(ips[0].IP)
}

// fields returns "field reason" of each finding.
func fields(findings []policy.Finding) []string {
	var out []string
	for _, f := range findings {
		out = append(out, f.Field.String()+" "+f.Reason)
	}
	return out
}

// samePath compares the fields of findings.
var samePath = cmp.Comparer(func(a, b *field.Path) bool { return a.String() == b.String() })
