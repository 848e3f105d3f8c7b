package netpol_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// memory is a backend without a network. It enforces the only kind of policy that the
// examples apply: a default deny of ingress.
type memory struct {
	state *netpol.State
}

func (m *memory) Supports() netpol.Support {
	return netpol.Support{
		Protocols: []corev1.Protocol{corev1.ProtocolTCP},
		Families:  []corev1.IPFamily{corev1.IPv4Protocol},
		Features:  []netpol.Feature{netpol.SilentDrops},
		Nodes:     2,
		Immediate: true,
	}
}

// Apply keeps the state and gives addresses to the pods that have none.
func (m *memory) Apply(_ context.Context, state *netpol.State) error {
	addr := netip.MustParseAddr("10.0.0.1")
	for i, pod := range state.Pods {
		pod = pod.DeepCopy()
		pod.Status.Phase = corev1.PodRunning
		pod.Status.PodIPs = []corev1.PodIP{{IP: addr.String()}}
		state.Pods[i] = pod
		addr = addr.Next()
	}
	m.state = state.Clone()
	return nil
}

func (m *memory) Probe(_ context.Context, connections []netpol.Connection) ([]netpol.Outcome, error) {
	outcomes := make([]netpol.Outcome, len(connections))
	for i, c := range connections {
		outcomes[i] = netpol.Connected
		if c.From != c.To && m.isolated(m.state.Pod(c.To)) {
			outcomes[i] = netpol.TimedOut
		}
	}
	return outcomes, nil
}

func (m *memory) isolated(pod *corev1.Pod) bool {
	for _, policy := range m.state.Policies {
		selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
		if err == nil && policy.Namespace == pod.Namespace && selector.Matches(labels.Set(pod.Labels)) {
			return true
		}
	}
	return false
}

func (m *memory) Close() error { return nil }

// small has four pods and one kind of traffic, so that the output is short.
var small = netpol.Model{
	Namespaces: []string{"x", "y"},
	Pods:       []string{"a", "b"},
	Ports:      []int32{80},
	Protocols:  []corev1.Protocol{corev1.ProtocolTCP},
	Families:   []corev1.IPFamily{corev1.IPv4Protocol},
}

// A scenario is played on a backend, here one in memory. Package cluster is a backend for
// live clusters.
func ExampleRunner_Play() {
	scenario := netpol.Scenario{
		Name:  "x/a is isolated",
		Model: small,
		Steps: []netpol.Step{{
			Name: "deny",
			Change: func(s *netpol.State) {
				s.Apply(netpol.NewPolicy("x", "deny", netpol.Subject("pod=a"), netpol.DenyIngress()))
			},
			Want: func(r *netpol.Reachability) { r.ExpectAllIngress("x/a", false) },
		}, {
			Name:   "the label is removed",
			Change: func(s *netpol.State) { s.LabelPod("x/a", "pod-") },
		}},
	}
	result := netpol.Runner{Backend: &memory{}}.Play(context.Background(), scenario)
	fmt.Println("as expected:", result.OK())
	fmt.Print(result.Report(netpol.ASCII, true))
	// Output:
	// as expected: true
	// x/a is isolated, step 1 deny: TCP 80 IPv4
	//        as expected
	//        x    y
	//        a b  a b
	// x/a    + +  + +
	// x/b    . +  + +
	// y/a    . +  + +
	// y/b    . +  + +
	// x/a is isolated, step 2 the label is removed: TCP 80 IPv4
	//        as expected
	//        x    y
	//        a b  a b
	// x/a    + +  + +
	// x/b    + +  + +
	// y/a    + +  + +
	// y/b    + +  + +
}

// A table can be filled and printed without a runner.
func ExampleShow() {
	table := netpol.NewTruthTable([]string{"shop/db", "shop/web", "guests/laptop"}, false)
	table.Fill(func(from, to string) bool { return from == to || from == "shop/web" || to == "shop/web" })
	fmt.Print(netpol.Show(netpol.ASCII, netpol.Grid{Title: "TCP 80", Want: table}))
	// Output:
	//                  TCP 80
	//                  shop           guests
	//                  db     web     laptop
	// shop/db          +      +       .
	// shop/web         +      +       +
	// guests/laptop    .      +       +
}

// Differences are marked, and listed below the tables.
func ExampleTruthTable_Diff() {
	pods := []string{"x/a", "x/b", "y/a"}
	want := netpol.NewTruthTable(pods, true)
	want.Set("y/a", "x/a", false)
	observed := netpol.NewTruthTable(pods, true)
	fmt.Print(want.Diff(observed))
	// Output:
	//        expected    observed
	//        x    y      x    y
	//        a b  a      a b  a
	// x/a    ✓ ✓  ✓      ✓ ✓  ✓
	// x/b    ✓ ✓  ✓      ✓ ✓  ✓
	// y/a    · ✓  ✓      ✗ ✓  ✓
	// y/a -> x/a: connected, should be silently dropped
}

// A policy is composed of its parts.
func ExampleNewPolicy() {
	policy := netpol.NewPolicy("x", "web-from-front", netpol.Subject("app=web"),
		netpol.Ingress(
			netpol.From(netpol.Pods("app=front").InNamespaces("ns=y")),
			netpol.At(netpol.TCP(80))))
	ingress, err := json.Marshal(policy.Spec.Ingress)
	if err != nil {
		panic(err)
	}
	fmt.Println(netpol.PolicyName(policy), policy.Spec.PolicyTypes)
	fmt.Println(string(ingress))
	// Output:
	// x/web-from-front [Ingress]
	// [{"ports":[{"protocol":"TCP","port":80}],"from":[{"podSelector":{"matchLabels":{"app":"front"}},"namespaceSelector":{"matchLabels":{"ns":"y"}}}]}]
}

// At first everything is expected to connect. Later expectations overwrite earlier ones.
func ExampleReachability() {
	r := netpol.NewReachability(small.State(), small.Traffic())
	r.ExpectAllIngress("x/*", false)
	r.For(netpol.TCP(80)).ExpectPeer("y/a", "x/[ab]", true)
	fmt.Print(netpol.Show(netpol.ASCII, netpol.Grid{Title: "TCP 80", Want: r.Table(r.Traffic()[0])}))
	// Output:
	//        TCP 80
	//        x    y
	//        a b  a b
	// x/a    + .  + +
	// x/b    . +  + +
	// y/a    + +  + +
	// y/b    . .  + +
}
