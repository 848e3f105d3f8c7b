package cluster

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// TestRights compares the published rights with the requests of a run that uses everything: none is
// missing and none is too much.
func TestRights(t *testing.T) {
	content, err := os.ReadFile("../rights.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var role rbacv1.ClusterRole
	if err := yaml.UnmarshalStrict(content, &role); err != nil {
		t.Fatal(err)
	}
	granted := make(map[string]bool)
	for _, rule := range role.Rules {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				granted[rule.APIGroups[0]+"/"+resource+" "+verb] = true
			}
		}
	}

	requested := requestsOfEverything(t)

	// These are no requests of a client with methods for each kind, or only made in an emergency.
	requested["/pods/exec create"], requested["/events list"] = true, true
	if !maps.Equal(granted, requested) {
		t.Errorf("granted %q,\nrequested %q", slices.Sorted(maps.Keys(granted)), slices.Sorted(maps.Keys(requested)))
	}
}

// requestsOfEverything returns the requests, as "group/resource verb", while objects of every kind
// are created, changed and deleted.
func requestsOfEverything(t *testing.T) map[string]bool {
	w := newWorld(t)
	w.serve(nil, v1Resources, v2Resources)
	b := w.backend(t, Config{Scale: Scale{Pods: 1, Namespaces: 1, Policies: 1}})
	for n := range 3 {
		if err := b.scale.change(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	state := netpol.Model{Vias: []netpol.Via{netpol.Service, netpol.NodePort, netpol.LoadBalancer}}.State()
	for _, change := range []func(*netpol.State){
		func(s *netpol.State) { applyAll(s, 1) },
		func(s *netpol.State) { applyAll(s, 2) },
		func(s *netpol.State) { s.LabelPod("x/a", "team=red") },
		func(s *netpol.State) { s.LabelNamespace("x", "team=red") },
		func(s *netpol.State) {
			s.ChangePod("y/a", func(p *corev1.Pod) { p.Spec.ServiceAccountName = "web" })
		},
		func(s *netpol.State) { s.DeletePod("x/b") },
		func(s *netpol.State) {
			s.ChangePod("z/a", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
		},
		func(s *netpol.State) { s.Ports = []int32{90} },
		func(s *netpol.State) {
			s.Withdraw("x/p", "AdminNetworkPolicy/p", "BaselineAdminNetworkPolicy/default", "ClusterNetworkPolicy/p", "CIDRGroup/g")
		},
	} {
		state = state.Clone()
		change(state)
		if err := b.Apply(t.Context(), state); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	requested := make(map[string]bool)
	for _, action := range slices.Concat(w.Actions(), w.objects.Actions()) {
		if slices.Contains([]string{"version", "resource", "group"}, action.GetResource().Resource) {
			continue // discovery, which every account may read
		}
		resource := action.GetResource().Resource
		if action.GetSubresource() != "" {
			resource += "/" + action.GetSubresource()
		}
		requested[action.GetResource().Group+"/"+resource+" "+action.GetVerb()] = true
	}
	return requested
}

// applyAll applies a policy of each kind, whose contents differ by number.
func applyAll(s *netpol.State, number int32) {
	s.Apply(netpol.NewPolicy("x", "p", netpol.Subject(fmt.Sprintf("pod=%d", number)), netpol.DenyIngress()),
		netpol.NewAdminNetworkPolicy("p", number, xy), netpol.NewBaselineAdminNetworkPolicy(xy, netpol.DenyFrom(netpol.Namespaces(fmt.Sprintf("ns=%d", number)))),
		netpol.NewClusterNetworkPolicy("p", v1beta1.AdminTier, number, xy), netpol.NewCIDRGroup("g", fmt.Sprintf("number=%d", number)))
}

// xy makes pods of the suite's namespaces the subject.
var xy = netpol.On(netpol.Namespaces("ns in (x,y)"))
