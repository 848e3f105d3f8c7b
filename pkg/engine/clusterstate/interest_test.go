package clusterstate

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

func clusterPolicy(name, spec string) *proposed.ClusterNetworkPolicy {
	p := &proposed.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	mustRead(spec, &p.Spec)
	return p
}

// TestNeeds: pods of this node are in x and y, those of the other node in z. All pods are needed if
// a decision requires knowing who has the peer's address.
func TestNeeds(t *testing.T) {
	all := []PodSet{{}}
	for _, tc := range []struct {
		name     string
		policies []compile.Object
		ranges   []string // of this node
		address  string   // of x/a, 10.0.0.1 if empty
		want     []PodSet
	}{
		{name: "no policy"},
		{name: "isolation", policies: []compile.Object{netpol("x", "p", `{podSelector: {}}`)}},
		{name: "own namespace", policies: []compile.Object{netpol("x", "p", `{podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}`)},
			want: []PodSet{{Namespace: "x"}}},
		{name: "labels in the own namespace", policies: []compile.Object{netpol("x", "p", `{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {b: "2", a: "1"}}}]}]}`)},
			want: []PodSet{{Namespace: "x", Labels: "a=1,b=2"}}},
		{name: "a policy of other nodes' pods", policies: []compile.Object{netpol("z", "p", `{podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}`)}},
		{name: "namespaces by labels", policies: []compile.Object{netpol("x", "p", `{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchExpressions: [{key: ns, operator: In, values: ["y", z]}]}}]}]}`)},
			want: []PodSet{{Namespace: "y"}, {Namespace: "z"}}},
		{name: "no namespace has the labels", policies: []compile.Object{netpol("x", "p", `{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {no: such}}}]}]}`)}},
		{name: "labels in all namespaces", policies: []compile.Object{netpol("x", "p", `{podSelector: {}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {}, podSelector: {matchExpressions: [{key: app, operator: NotIn, values: [b, a]}]}}]}]}`)},
			want: []PodSet{{Labels: "app notin (a,b)"}}},
		{name: "every peer", policies: []compile.Object{netpol("x", "p", `{podSelector: {}, ingress: [{}], egress: [{}], policyTypes: [Ingress, Egress]}`)}},
		{name: "addresses", policies: []compile.Object{netpol("x", "p", `{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8}}]}]}`)}},
		{name: "a named port of every peer", policies: []compile.Object{netpol("x", "p", `{podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: web}]}]}`)}, want: all},
		{name: "a named port of addresses", policies: []compile.Object{netpol("x", "p", `{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8}}], ports: [{port: web}]}]}`)}, want: all},
		{name: "a named port of pods", policies: []compile.Object{netpol("x", "p", `{podSelector: {}, policyTypes: [Egress], egress: [{to: [{podSelector: {}}], ports: [{port: web}]}]}`)},
			want: []PodSet{{Namespace: "x"}}},
		{name: "a named port of this node's pods", policies: []compile.Object{netpol("x", "p", `{podSelector: {}, ingress: [{ports: [{port: web}]}]}`)}},
		{name: "an audited policy", policies: []compile.Object{audited(netpol("x", "p", `{podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}`))},
			want: []PodSet{{Namespace: "x"}}},
		{name: "an administrator denies ingress from pods", ranges: []string{"10.0.0.0/23"}, policies: []compile.Object{clusterPolicy("p",
			`{tier: Admin, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {matchLabels: {ns: z}}}]}]}`)}, want: []PodSet{{Namespace: "z"}}},
		{name: "an administrator denies ingress from pods of this node, and there are no ranges", policies: []compile.Object{clusterPolicy("p",
			`{tier: Admin, subject: {namespaces: {matchLabels: {ns: z}}}, ingress: [{action: Deny, from: [{namespaces: {matchLabels: {ns: x}}}]}]}`)}, want: all},
		{name: "an administrator denies egress to pods (CN-35)", ranges: []string{"10.0.0.0/23"}, policies: []compile.Object{clusterPolicy("p",
			`{tier: Admin, subject: {namespaces: {}}, egress: [{action: Deny, to: [{namespaces: {matchLabels: {ns: z}}}]}]}`)}, want: all},
		{name: "an administrator denies egress to pods, and there are no ranges", policies: []compile.Object{clusterPolicy("p",
			`{tier: Admin, subject: {namespaces: {}}, egress: [{action: Deny, to: [{namespaces: {matchLabels: {ns: z}}}]}]}`)}, want: []PodSet{{Namespace: "z"}}},
		{name: "an administrator denies egress to pods behind isolation", ranges: []string{"10.0.0.0/23"}, policies: []compile.Object{
			netpol("x", "p", `{podSelector: {}, policyTypes: [Egress], egress: [{to: [{podSelector: {}}]}]}`), netpol("y", "p", `{podSelector: {}, policyTypes: [Egress]}`), clusterPolicy("p",
				`{tier: Baseline, subject: {namespaces: {}}, egress: [{action: Deny, to: [{namespaces: {matchLabels: {ns: z}}}]}]}`)}, want: []PodSet{{Namespace: "x"}}},
		{name: "rules behind one that allows all", policies: []compile.Object{
			netpol("x", "a", `{podSelector: {}, ingress: [{}]}`), netpol("x", "b", `{podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}`)}},
		{name: "rules behind one of an administrator that denies all, after one that passes", ranges: []string{"10.0.0.0/23"}, policies: []compile.Object{
			clusterPolicy("a", `{tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [{action: Pass, from: [{namespaces: {matchLabels: {ns: z}}}]}]}`),
			clusterPolicy("b", `{tier: Admin, priority: 2, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{}]}]}`), // an unreadable peer denies every peer
			netpol("x", "p", `{podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}`)}, want:                               []PodSet{{Namespace: "x"}, {Namespace: "z"}}},
		{name: "an administrator passes egress to pods (CN-35)", ranges: []string{"10.0.0.0/23"}, policies: []compile.Object{clusterPolicy("p",
			`{tier: Admin, subject: {namespaces: {}}, egress: [{action: Pass, to: [{namespaces: {matchLabels: {ns: z}}}]}]}`)}, want: all},
		{name: "an administrator allows egress to pods", ranges: []string{"10.0.0.0/23"}, policies: []compile.Object{clusterPolicy("p",
			`{tier: Admin, subject: {namespaces: {}}, egress: [{action: Accept, to: [{namespaces: {matchLabels: {ns: z}}}]}]}`)}, want: []PodSet{{Namespace: "z"}}},
		{name: "an administrator allows domain names (CN-36)", policies: []compile.Object{clusterPolicy("p",
			`{tier: Admin, subject: {namespaces: {}}, egress: [{action: Accept, to: [{domainNames: [a.test]}]}]}`)}, want: all},
		{name: "an administrator allows service accounts", ranges: []string{"10.0.0.0/23"}, policies: []compile.Object{clusterPolicy("p",
			`{tier: Admin, subject: {namespaces: {}}, ingress: [{action: Accept, from: [{serviceAccounts: {namespaceSelector: {matchLabels: {ns: z}}, names: [s]}}]}]}`)},
			want: []PodSet{{Namespace: "z"}}}, // no label selector finds the pods of an account
		{name: "addresses in the node's ranges", ranges: []string{"10.0.0.0/23"}},
		{name: "an address outside of them", ranges: []string{"10.0.0.0/23"}, address: "10.9.0.1", want: all},
		{name: "an address of another family", ranges: []string{"10.0.0.0/23"}, address: "fd00::1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := fixture()
			in.Policies, in.Nodes[0].Spec.PodCIDRs = tc.policies, tc.ranges
			in.Features.ServiceAccounts = true
			if tc.address != "" {
				in.Pods[0].Status.PodIPs = []corev1.PodIP{{IP: tc.address}}
			}
			// The order of events is irrelevant.
			for _, nodesFirst := range []bool{true, false} {
				c := New(Config{NodeName: in.NodeName, Partial: true, Features: in.Features})
				for _, p := range in.Pods {
					c.Set(compile.NewPod(p))
				}
				c.Snapshot()
				setAll(c, in.Policies)
				c.Snapshot()
				if nodesFirst {
					setAll(c, in.Nodes)
					c.Snapshot()
				}
				setAll(c, in.Namespaces)
				c.Snapshot()
				if !nodesFirst {
					setAll(c, in.Nodes)
					c.Snapshot()
				}
				if diff := cmp.Diff(tc.want, c.Needs(), cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("nodes first: %v, -want +got:\n%s", nodesFirst, diff)
				}
			}
		})
	}
}

func audited[O metav1.Object](o O) O {
	o.SetAnnotations(map[string]string{compile.EnforcementAnnotation: "audit"})
	return o
}

// TestInterestOfThePastIsForgotten: policies or namespaces come and go while all pods are watched.
func TestInterestOfThePastIsForgotten(t *testing.T) {
	in := fixture()
	c := New(Config{NodeName: in.NodeName, Partial: true, Features: in.Features})
	for _, p := range in.Pods {
		c.Set(compile.NewPod(p))
	}
	c.SetListed([]PodSet{{}})
	check := func(what string) {
		t.Helper()
		if of, covers := len(c.interest.chainNeeds), len(c.interest.covers); of > 2 || covers > 2 {
			t.Errorf("the needs of %d chains and %d sets are remembered after many %s", of, covers, what)
		}
	}
	for i := range 100 {
		c.Set(netpol("x", "p", fmt.Sprintf(`{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {release: "%d"}}}]}]}`, i)))
		c.Snapshot()
	}
	check("policies")
	c.Set(netpol("x", "p", `{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {for: tests}}}]}]}`))
	for i := range 100 {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("run-", i), Labels: map[string]string{"for": "tests"}}}
		c.Set(ns)
		c.Snapshot()
		c.Delete(compile.KindNamespace, "", ns.Name)
		c.Snapshot()
	}
	check("namespaces")
}
