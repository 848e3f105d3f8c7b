package cluster

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// Two suites play on one cluster with objects and addresses of their own, and the first that ends
// leaves those of the other.
func TestTwoRuns(t *testing.T) {
	w := newWorld(t)
	w.serve(nil, v1Resources, v2Resources)
	model := netpol.Model{Namespaces: []string{"x"}, Vias: []netpol.Via{netpol.LoadBalancer}}
	var backends []*Backend
	balancers := make(map[string]bool)
	for _, name := range []runName{"t", "u"} {
		b, err := newBackend(t.Context(), w, w.objects, name, w.run, Config{Image: "agnhost", Families: []corev1.IPFamily{corev1.IPv4Protocol},
			Scale: Scale{Pods: 1, Namespaces: 1}})
		if err != nil {
			t.Fatal(err)
		}
		backends = append(backends, b)
		state := model.State()
		state.Apply(netpol.NewAdminNetworkPolicy("p", 1, netpol.On(netpol.Namespaces("ns=x")), netpol.DenyFrom(netpol.Namespaces(""))))
		if err := b.Apply(t.Context(), state); err != nil {
			t.Fatal(err)
		}
		for _, pod := range state.Endpoints() {
			balancers[targets(b, pod, netpol.TCP(80))[netpol.LoadBalancer]] = true
		}
	}
	if len(balancers) != 6 {
		t.Errorf("6 load balancers have the addresses %v", balancers)
	}
	if got, want := w.adminPolicies(t), "AdminNetworkPolicy/t-p 1, AdminNetworkPolicy/u-p 1"; got != want {
		t.Errorf("policies are %s, want %s", got, want)
	}

	if err := backends[0].Close(); err != nil {
		t.Fatal(err)
	}
	var left []string
	namespaces, _ := w.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	for _, n := range namespaces.Items {
		left = append(left, n.Name)
	}
	if got, want := fmt.Sprintln(left, w.adminPolicies(t)), "[kube-system u-scale-0 u-x] AdminNetworkPolicy/u-p 1\n"; got != want {
		t.Errorf("after the first has ended there is %s, want %s", got, want)
	}
	if err := backends[1].Close(); err != nil || w.adminPolicies(t) != "" {
		t.Errorf("%v; policies are left: %s", err, w.adminPolicies(t))
	}
}

// Policies name namespaces and groups as the cluster has them, and the state keeps its own names.
func TestNamesInPolicies(t *testing.T) {
	w := newWorld(t)
	w.serve(nil, v1Resources, v2Resources)
	b := w.backend(t, Config{})
	state := netpol.Model{}.State()
	state.Apply(netpol.NewPolicy("x", "p", netpol.Ingress(netpol.From(netpol.Namespaces("kubernetes.io/metadata.name notin (x, y)")), netpol.At()),
		netpol.Egress(netpol.To(netpol.Namespaces("kubernetes.io/metadata.name=z")))),
		netpol.ProposedYAML("q", `{subject: {pods: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: x}}, podSelector: {}}},
			egress: [{action: Deny, to: [{cidrGroups: {names: [g]}}, {cidrGroups: {selector: {matchLabels: {env: cloud}}}}]}]}`),
		netpol.NewCIDRGroup("g", "env=cloud"))
	if err := b.Apply(t.Context(), state); err != nil {
		t.Fatal(err)
	}
	policy, err := w.NetworkingV1().NetworkPolicies("t-x").Get(t.Context(), "p", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(policy.Spec.Ingress[0].From[0].NamespaceSelector.MatchExpressions[0].Values, policy.Spec.Egress[0].To[0].NamespaceSelector.MatchLabels); got != "[t-x t-y] map[kubernetes.io/metadata.name:t-z]" {
		t.Errorf("the policy selects %s", got)
	}
	written := fmt.Sprint(w.list(t, clusterPolicy)[0].Object["spec"])
	for _, want := range []string{"kubernetes.io/metadata.name:t-x netpol-suite/run:t", "names:[t-g]", "env:cloud netpol-suite/run:t"} {
		if !strings.Contains(written, want) {
			t.Errorf("%q is not in %s", want, written)
		}
	}
	namespace, _ := w.CoreV1().Namespaces().Get(t.Context(), "t-x", metav1.GetOptions{})
	if namespace.Labels[corev1.LabelMetadataName] != "t-x" {
		t.Errorf("the labels of the namespace are %v", namespace.Labels)
	}
	if state.Pods[0].Namespace != "x" || state.Namespaces[0].Name != "x" || state.Policies[0].Namespace != "x" || !state.Addr("x/a", corev1.IPv4Protocol).IsValid() {
		t.Errorf("the state has %s, %+v", state.Namespaces[0].Name, state.Pods[0])
	}
}
