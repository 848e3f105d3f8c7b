package compile_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// fromB isolates the pods of x and lets in the pods b of any namespace.
const fromB = `{podSelector: {}, ingress: [{from: [{namespaceSelector: {}, podSelector: {matchLabels: {pod: b}}}]}]}`

func withPolicy(t *testing.T, spec string) input {
	in := fixture()
	in.Policies = []compile.Object{netpol(t, "p", spec)}
	return in
}

func TestNamespaces(t *testing.T) {
	const labelled = `{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchExpressions: [{key: ns, operator: NotIn, values: [x]}]}}]}]}`
	const named = `{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: "y"}}}]}]}`
	const all = `{podSelector: {}, ingress: [{from: [{namespaceSelector: {}}]}]}`
	removeY := func(in *input) {
		in.Namespaces = slices.DeleteFunc(in.Namespaces, func(ns *corev1.Namespace) bool { return ns.Name == "y" })
	}
	for _, tc := range []struct {
		name, spec, probe string
		change            func(*input)
	}{
		{"NP-14 the name label is a real label", named, "allow y/a x/a tcp/80", func(*input) {}},
		{"NP-14 the name label is not made up", named, "deny y/a x/a tcp/80", func(in *input) { in.Namespaces[1].Labels = nil }},
		{"NP-15 an unknown namespace has no labels to select by", labelled, "deny y/a x/a tcp/80", removeY},
		{"NP-15 an unknown namespace is one of all namespaces", all, "allow y/a x/a tcp/80", removeY},
		{"NP-15 a namespace without labels is known", labelled, "allow y/a x/a tcp/80", func(in *input) { in.Namespaces[1].Labels = nil }},
		{"NP-15 the own namespace needs no object", fromB, "allow x/b x/a tcp/80", func(in *input) { in.Namespaces = nil }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := withPolicy(t, tc.spec)
			tc.change(&in)
			check(t, in, tc.probe)
		})
	}
}

func TestPods(t *testing.T) {
	now := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	// reuse adds a pod c of namespace y, which no rule allows, at x/b's address.
	reuse := func(in *input, change func(old, new *corev1.Pod)) {
		old := in.pod("x/b")
		p := pod("y", "reuser", "n1", old.Status.PodIPs[0].IP)
		change(old, p)
		in.Pods = append(in.Pods, p)
	}
	for _, tc := range []struct {
		name, probes string
		change       func(*input)
	}{
		{"NP-22 a host-network pod is no peer", "deny x/b x/a tcp/80", func(in *input) { in.pod("x/b").Spec.HostNetwork = true }},
		{"NP-23 NP-33 a host-network pod is no subject", "allow y/a x/a tcp/80", func(in *input) { in.pod("x/a").Spec.HostNetwork = true }},
		{"NP-50 a succeeded pod is no peer", "deny x/b x/a tcp/80", func(in *input) { in.pod("x/b").Status.Phase = corev1.PodSucceeded }},
		{"NP-50 a failed pod is no subject", "allow y/a x/a tcp/80", func(in *input) { in.pod("x/a").Status.Phase = corev1.PodFailed }},
		{"NP-50 a failed pod's address is reused", "deny x/b x/a tcp/80", func(in *input) {
			reuse(in, func(old, _ *corev1.Pod) { old.Status.Phase = corev1.PodFailed })
		}},
		{"NP-50 a failed pod does not take an address away", "allow x/b x/a tcp/80", func(in *input) {
			reuse(in, func(_, new *corev1.Pod) { new.Status.Phase = corev1.PodFailed; new.CreationTimestamp = now })
		}},
		{"NP-51 a terminating pod still counts", "allow x/b x/a tcp/80", func(in *input) { in.pod("x/b").DeletionTimestamp = &now }},
		{"NP-51 a terminating pod loses its address to a new one", "deny x/b x/a tcp/80", func(in *input) {
			reuse(in, func(old, _ *corev1.Pod) { old.DeletionTimestamp = &now; old.CreationTimestamp = now })
		}},
		{"NP-51 of two live pods the younger one has the address", "deny x/b x/a tcp/80", func(in *input) {
			reuse(in, func(_, new *corev1.Pod) { new.CreationTimestamp = now })
		}},
		{"NP-51 of two live pods the older one does not", "allow x/b x/a tcp/80", func(in *input) {
			reuse(in, func(old, _ *corev1.Pod) { old.CreationTimestamp = now })
		}},
		{"NP-51 of two equal pods the smaller UID has the address", "deny x/b x/a tcp/80", func(in *input) {
			reuse(in, func(old, new *corev1.Pod) { old.UID, new.UID = "2", "1" })
		}},
		{"NP-52 all addresses count", "allow x/b x/a tcp/80\nallow x/b:6 x/a:6 tcp/80\ndeny y/a:6 x/a:6 tcp/80", func(*input) {}},
		{"NP-52 podIP alone will do", "allow x/b x/a tcp/80\ndeny 10.0.0.77 x/a tcp/80", func(in *input) {
			in.pod("x/b").Status.PodIP = "10.0.0.2"
		}},
		{"NP-52 a pod without addresses is nowhere", "deny 10.0.0.2 x/a tcp/80", func(in *input) { in.pod("x/b").Status = corev1.PodStatus{} }},
		{"NP-52 an address that cannot be read is not one", "deny 10.0.0.2 x/a tcp/80", func(in *input) {
			in.pod("x/b").Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.2.3"}, {IP: ""}}
		}},
		{"NP-20 a mapped address is its IPv4 address", "allow 10.0.0.2 x/a tcp/80", func(in *input) {
			in.pod("x/b").Status.PodIPs = []corev1.PodIP{{IP: "::ffff:10.0.0.2"}}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := withPolicy(t, fromB)
			tc.change(&in)
			check(t, in, tc.probes)
			slices.Reverse(in.Pods) // NP-54: the order of events is irrelevant
			check(t, in, tc.probes)
		})
	}
}

func TestNamedPortsOfSidecars(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	container := func(port int32, restart *corev1.ContainerRestartPolicy) corev1.Container {
		return corev1.Container{RestartPolicy: restart, Ports: []corev1.ContainerPort{{Name: "side", ContainerPort: port}}}
	}
	in := withPolicy(t, `{podSelector: {}, ingress: [{ports: [{port: side}]}]}`)
	spec := &in.pod("x/a").Spec
	spec.InitContainers = []corev1.Container{container(8001, &always), container(8002, nil)}
	spec.Containers = append(spec.Containers, container(8003, nil), corev1.Container{Ports: []corev1.ContainerPort{
		{Name: "side", ContainerPort: 0}, {Name: "side", ContainerPort: 65536 + 8004}, {Name: "side", ContainerPort: 8005, Protocol: "ICMP"}, {ContainerPort: 8006}}})
	// NP-28: the union over regular containers and sidecars.
	check(t, in, `
		allow y/a x/a tcp/8001
		deny y/a x/a tcp/8002
		allow y/a x/a tcp/8003
		deny y/a x/a tcp/8004
		deny y/a x/a tcp/8005
		deny y/a x/a tcp/8006`)
}

func TestNamedPortsDifferFromPodToPod(t *testing.T) {
	in := withPolicy(t, `{podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: http}]}]}`)
	in.pod("y/b").Spec.Containers[0].Ports[0].ContainerPort = 8080
	check(t, in, `
		allow x/a y/a tcp/80
		deny x/a y/a tcp/8080
		allow x/a y/b tcp/8080
		deny x/a y/b tcp/80`)
}

func TestPodsTooNewToBeKnown(t *testing.T) {
	in := withPolicy(t, `{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.9/32}}]}]}`)
	in.Nodes = []*corev1.Node{
		{ObjectMeta: metav1.ObjectMeta{Name: "n2"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.0.2.0/24"}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{PodCIDR: "10.0.0.0/24", PodCIDRs: []string{"10.0.0.0/24", "fd00:0::/64", "nonsense"}}},
	}
	// NP-55: 10.0.0.9 is a pod of this node, and some policy isolates ingress.
	s := check(t, in, `
		deny y/a 10.0.0.9 tcp/80
		deny y/a:6 fd00:0::9 tcp/80
		allow y/a 10.0.2.9 tcp/80
		allow 10.0.0.9 y/a tcp/80
		allow 10.0.0.9 x/a tcp/80`)
	want := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00::/64")}
	if got := s.Ranges(policy.Ingress); !slices.Equal(got, want) {
		t.Errorf("ranges %v, want %v", got, want)
	}
	if got := s.Ranges(policy.Egress); got != nil {
		t.Errorf("nothing isolates egress, yet its ranges are %v", got)
	}
}

func TestSelected(t *testing.T) {
	in := withPolicy(t, `{podSelector: {matchExpressions: [{key: pod, operator: In, values: [a, c]}]}}`)
	in.Policies = append(in.Policies, netpol(t, "q", `{podSelector: {matchLabels: {pod: b}}, policyTypes: [Egress]}`))
	in.pod("x/c").Status.Phase = corev1.PodSucceeded
	s := clusterstate.Compile(in.Input)
	addrs := func(of ...string) (out []netip.Addr) {
		for _, a := range of {
			out = append(out, netip.MustParseAddr(a))
		}
		return out
	}
	if got, want := s.Selected(policy.Ingress), addrs("10.0.0.1", "fd00:0::1"); !slices.Equal(got, want) {
		t.Errorf("ingress selects %v, want %v", got, want)
	}
	if got, want := s.Selected(policy.Egress), addrs("10.0.0.2", "fd00:0::2"); !slices.Equal(got, want) {
		t.Errorf("egress selects %v, want %v", got, want)
	}
	if got, want := len(s.Local()), 10; got != want { // x and y without x/c
		t.Errorf("%d local addresses, want %d", got, want)
	}
}

// Deleting a policy, pod or namespace leaves no trace (NP-53, NP-58).
func TestWhatIsGoneIsGone(t *testing.T) {
	in := withPolicy(t, fromB)
	check(t, in, "deny y/a x/a tcp/80")
	now := metav1.Now()
	in.Namespaces[0].DeletionTimestamp = &now
	check(t, in, "deny y/a x/a tcp/80")
	in.Policies = nil
	check(t, in, "allow y/a x/a tcp/80")
}
