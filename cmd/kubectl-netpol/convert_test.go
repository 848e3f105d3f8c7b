package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
	"sigs.k8s.io/kube-network-policies/tests/model/random"
)

const oldPolicies = `
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: a, labels: {team: web}, annotations: {kubectl.kubernetes.io/last-applied-configuration: "{}", note: x}}
spec:
  priority: 7
  subject: {pods: {namespaceSelector: {matchLabels: {a: b}}, podSelector: {}}}
  ingress:
  - {name: web, action: Allow, from: [{namespaces: {}}], ports: [{portNumber: {port: 80, protocol: TCP}}, {namedPort: dns}, {portRange: {start: 5, end: 5, protocol: UDP}}]}
  egress:
  - {action: Pass, to: [{networks: [10.0.0.0/8]}, {nodes: {}}], ports: [{portRange: {start: 5, end: 9, protocol: SCTP}}]}
  - {action: Deny, to: [{namespaces: {}}]}
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: BaselineAdminNetworkPolicy
metadata: {name: default}
spec:
  subject: {namespaces: {}}
  ingress:
  - {action: Deny, from: [{namespaces: {}}]}
`

func TestConvert(t *testing.T) {
	const want = `---
apiVersion: policy.networking.k8s.io/v1beta1
kind: ClusterNetworkPolicy
metadata:
  annotations:
    note: x
  labels:
    team: web
  name: a
spec:
  egress:
  - action: Pass
    protocols:
    - sctp:
        destinationPort:
          range:
            end: 9
            start: 5
    to:
    - networks:
      - 10.0.0.0/8
    - nodes: {}
  - action: Deny
    to:
    - namespaces: {}
  ingress:
  - action: Accept
    from:
    - namespaces: {}
    name: web
    protocols:
    - tcp:
        destinationPort:
          number: 80
    - destinationNamedPort: dns
    - udp:
        destinationPort:
          number: 5
  priority: 7
  subject:
    pods:
      namespaceSelector:
        matchLabels:
          a: b
      podSelector: {}
  tier: Admin
---
apiVersion: policy.networking.k8s.io/v1beta1
kind: ClusterNetworkPolicy
metadata:
  name: default
spec:
  ingress:
  - action: Deny
    from:
    - namespaces: {}
  priority: 1000
  subject:
    namespaces: {}
  tier: Baseline
`
	if code, got, stderr := call(t, oldPolicies, "convert -f -"); code != 0 || got != want {
		t.Errorf("exit %d, %s\n%s", code, stderr, got)
	}
}

// What a ClusterNetworkPolicy cannot say is named, and then nothing is written.
func TestConvertNamesWhatCannotBeSaid(t *testing.T) {
	cluster := func(name, tier string, priority int) string {
		return fmt.Sprintf("\n---\napiVersion: policy.networking.k8s.io/v1beta1\nkind: ClusterNetworkPolicy\nmetadata: {name: %s}\nspec: {tier: %s, priority: %d, subject: {namespaces: {}}}\n", name, tier, priority)
	}
	change := func(old, with string) string { return strings.Replace(oldPolicies, old, with, 1) }
	for name, tt := range map[string]struct{ in, want string }{
		"a name that is taken":        {oldPolicies + cluster("a", "Baseline", 1), "AdminNetworkPolicy/a: ClusterNetworkPolicy/a has, or gets, the same name"},
		"two of one name":             {change("name: a,", "name: default,"), "BaselineAdminNetworkPolicy/default: AdminNetworkPolicy/default has, or gets, the same name"},
		"another comes first":         {change("name: a,", "name: b,") + cluster("a", "Admin", 7), "AdminNetworkPolicy/b: ClusterNetworkPolicy/a has the same priority"},
		"another comes last":          {oldPolicies + cluster("e", "Baseline", 1000), "BaselineAdminNetworkPolicy/default: ClusterNetworkPolicy/e has the last priority"},
		"a range backwards":           {change("start: 5, end: 9", "start: 9, end: 5"), "Start port must be less than End port"},
		"more rules than are allowed": {change("  - {action: Deny, to: [{namespaces: {}}]}\n", strings.Repeat("  - {action: Deny, to: [{namespaces: {}}]}\n", 25)), "spec.egress: Too many: 26"},
		"bits of a host":              {change("10.0.0.0/8", "10.0.0.1/8"), "Invalid CIDR"},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := call(t, tt.in, "convert -f -")
			if code != 1 || stdout != "" || !strings.Contains(stderr, "Cannot be said: ") || !strings.Contains(stderr, tt.want) {
				t.Errorf("exit %d, %q, want %q\n%s", code, stdout, tt.want, stderr)
			}
		})
	}
	for _, harmless := range []string{cluster("b", "Admin", 7), cluster("a-a", "Admin", 8), cluster("a1", "Baseline", 7), cluster("a2", "Baseline", 1000), cluster("e", "Baseline", 999)} {
		if code, _, stderr := call(t, oldPolicies+harmless, "convert -f -"); code != 0 {
			t.Errorf("exit %d for%s: %s", code, harmless, stderr)
		}
	}
}

// What files are refused for, an older server may have.
func TestConvertWhatTheServerHas(t *testing.T) {
	other, unknown := &v1alpha1.BaselineAdminNetworkPolicy{}, &v1alpha1.AdminNetworkPolicy{}
	other.Name, unknown.Name = "other", "a"
	unknown.Spec.Egress = []v1alpha1.AdminNetworkPolicyEgressRule{{Action: "Allow", To: []v1alpha1.AdminNetworkPolicyEgressPeer{{}}}}
	_, faults, err := converted([]compile.Object{other, unknown})
	got := strings.Join(faults, "\n")
	if err != nil || !strings.Contains(got, "BaselineAdminNetworkPolicy/other: it is not enforced") || !strings.Contains(got, "AdminNetworkPolicy/a: spec.egress[0].to[0]") {
		t.Errorf("%v, %s", err, got)
	}
}

// Every connection of a random cluster is decided the same before and after, in both directions, with
// priorities that collide. So is every one while both are in force.
func TestConvertedPoliciesDecideTheSame(t *testing.T) {
	count := 0
	for seed := range uint64(300) {
		in := convertible(seed)
		clusterPolicies, faults, err := converted(in.Policies)
		if err != nil {
			t.Fatal(err)
		}
		if len(faults) > 0 { // of names and priorities
			continue
		}
		both, after := in, in
		after.Policies = slices.DeleteFunc(slices.Clone(in.Policies), func(p compile.Object) bool { return strings.HasSuffix(compile.KindOf(p).Name, "AdminNetworkPolicy") })
		both.Policies = slices.Clone(in.Policies)
		for _, c := range clusterPolicies {
			text, err := json.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			p := new(proposed.ClusterNetworkPolicy)
			if err := json.Unmarshal(text, p); err != nil {
				t.Fatal(err)
			}
			after.Policies, both.Policies = append(after.Policies, p), append(both.Policies, p)
			count++
		}
		sameDecisions(t, seed, in, after)
		sameDecisions(t, seed, in, both)
	}
	t.Logf("%d policies converted", count)
	if count < 200 {
		t.Errorf("only %d policies are converted: the test is weak", count)
	}
}

func sameDecisions(t *testing.T, seed uint64, before, after clusterstate.Input) {
	t.Helper()
	b, a := reachability.New(before), reachability.New(after)
	addresses := slices.Concat(reachability.ExternalAddresses(reachability.Translated{}, b, a), reachability.NodeAddresses(b, a))
	for _, family := range []reachability.Family{reachability.FirstCommon, reachability.IPv6} {
		d, err := reachability.Compare(reachability.Names{}, b, a, reachability.PortRanges(b, a), addresses, family)
		if err != nil {
			t.Fatal(err)
		}
		if len(d.Changes) > 0 {
			t.Fatalf("seed %d: %+v\nof %v", seed, d.Changes, before.Policies)
		}
	}
}

// convertible returns a random cluster with policies of all kinds that can be said, and few priorities.
func convertible(seed uint64) clusterstate.Input {
	g := &random.Gen{Rand: rand.New(rand.NewPCG(seed, 0)), Namespaces: []string{"x", "y"}, CIDRs: random.CIDRs, Rules: 3}
	in := clusterstate.Input{Features: compile.AllFeatures()}
	for i := range 2 {
		in.Nodes = append(in.Nodes, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i+1), Labels: g.Labels()},
			Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("192.168.0.%d", i+1)}}},
		})
	}
	for n, ns := range g.Namespaces {
		in.Namespaces = append(in.Namespaces, g.Namespace(ns))
		for i := range 1 + g.IntN(4) {
			pod := g.Pod(ns, fmt.Sprint("p", i))
			pod.Status.PodIPs = []corev1.PodIP{{IP: fmt.Sprintf("10.1.0.%d", n*16+i+1)}, {IP: fmt.Sprintf("fd00:1::%d", n*16+i+1)}}
			in.Pods = append(in.Pods, pod)
		}
	}
	for i := range g.IntN(3) {
		in.Policies = append(in.Policies, g.NetworkPolicy(random.Pick(g, g.Namespaces...), fmt.Sprint("np", i)))
	}
	for _, name := range []string{"b", "a", "d", "c"}[:1+g.IntN(4)] {
		p := g.AdminNetworkPolicy(name)
		p.Spec.Priority = int32(g.IntN(2))
		in.Policies = append(in.Policies, p)
	}
	for _, name := range []string{"a-a", "e"}[:g.IntN(3)] {
		p := g.ClusterNetworkPolicy(name)
		p.Spec.Priority = random.Pick(g, int32(0), 1, 2, 1000)
		in.Policies = append(in.Policies, p)
	}
	if g.OneIn(2) {
		in.Policies = append(in.Policies, g.BaselineAdminNetworkPolicy("default"))
	}
	in.Policies = slices.DeleteFunc(in.Policies, func(p compile.Object) bool {
		_, faults, err := converted([]compile.Object{p})
		return err != nil || len(faults) > 0
	})
	return in
}
