package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// The resources of both versions.
var (
	v1Resources  = &metav1.APIResourceList{GroupVersion: "policy.networking.k8s.io/v1alpha1", APIResources: []metav1.APIResource{{Name: "adminnetworkpolicies"}, {Name: "baselineadminnetworkpolicies"}}}
	oldResources = &metav1.APIResourceList{GroupVersion: "policy.networking.k8s.io/v1alpha2", APIResources: []metav1.APIResource{{Name: "clusternetworkpolicies"}}}
	v2Resources  = &metav1.APIResourceList{GroupVersion: "policy.networking.k8s.io/v1beta1", APIResources: []metav1.APIResource{{Name: "clusternetworkpolicies"}}}
)

// serve adds resources to the world. Dry runs store nothing; they fail if the definitions
// are not experimental.
func (w *world) serve(experimental bool, resources ...*metav1.APIResourceList) {
	w.Resources = resources
	w.policies.PrependReactor("create", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if object := action.(clienttesting.CreateAction).GetObject().(netpol.Policy); object.GetName() != "netpol-suite" {
			return false, nil, nil
		}
		if !experimental {
			return true, nil, apierrors.NewInvalid(schema.GroupKind{}, "netpol-suite", nil)
		}
		return true, nil, nil
	})
}

func TestSupportedPolicyKinds(t *testing.T) {
	noBaseline := v1Resources.DeepCopy()
	noBaseline.APIResources = noBaseline.APIResources[:1]
	for _, c := range []struct {
		name         string
		experimental bool
		resources    []*metav1.APIResourceList
		want         []netpol.Feature
	}{
		{"neither", true, nil, nil},
		{"v1alpha1", false, []*metav1.APIResourceList{v1Resources}, []netpol.Feature{netpol.AdminNetworkPolicies}},
		{"v1alpha1 without the baseline", true, []*metav1.APIResourceList{noBaseline}, nil},
		{"v1beta1", true, []*metav1.APIResourceList{v2Resources}, []netpol.Feature{netpol.ClusterNetworkPolicies, netpol.ExperimentalFields}},
		{"v1alpha2", false, []*metav1.APIResourceList{oldResources}, []netpol.Feature{netpol.ClusterNetworkPolicies}},
		{"both", false, []*metav1.APIResourceList{v1Resources, v2Resources}, []netpol.Feature{netpol.AdminNetworkPolicies, netpol.ClusterNetworkPolicies}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.serve(c.experimental, c.resources...)
			if got, want := w.backend(t, Config{}).Supports().Features, append([]netpol.Feature{netpol.Services}, c.want...); !slices.Equal(got, want) {
				t.Errorf("features are %q, want %q", got, want)
			}
		})
	}
}

// adminPolicies lists the world's administrators' policies with their priorities.
func (w *world) adminPolicies(t *testing.T) string {
	t.Helper()
	var all []string
	v1, err := w.policies.PolicyV1alpha1().AdminNetworkPolicies().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range v1.Items {
		all = append(all, fmt.Sprint(netpol.PolicyName(&p), " ", p.Spec.Priority))
	}
	baseline, err := w.policies.PolicyV1alpha1().BaselineAdminNetworkPolicies().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range baseline.Items {
		all = append(all, netpol.PolicyName(&p))
	}
	for _, old := range []bool{false, true} {
		v2, err := (&Backend{policies: w.policies, older: old}).clusterPolicies().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range v2.Items {
			all = append(all, fmt.Sprint(netpol.PolicyName(&p), " ", p.Spec.Priority))
		}
	}
	return strings.Join(all, ", ")
}

func TestApplyAdminPolicies(t *testing.T) {
	t.Run("v1beta1", func(t *testing.T) { testApplyAdminPolicies(t, v2Resources) })
	t.Run("v1alpha2", func(t *testing.T) { testApplyAdminPolicies(t, oldResources) })
}

func testApplyAdminPolicies(t *testing.T, served *metav1.APIResourceList) {
	w := newWorld(t)
	w.serve(false, v1Resources, served)
	foreign := netpol.NewClusterNetworkPolicy("theirs", v1beta1.AdminTier, 1)
	if _, err := (&Backend{policies: w.policies, older: served == oldResources}).clusterPolicies().Create(t.Context(), foreign, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b := w.backend(t, Config{})
	subject := netpol.On(netpol.Namespaces("ns in (x,y)"))
	state := netpol.Model{}.State()
	for _, step := range []struct {
		change func()
		want   string
	}{
		{func() {
			state.Apply(netpol.NewAdminNetworkPolicy("a", 1, subject), netpol.NewAdminNetworkPolicy("b", 2, subject),
				netpol.NewBaselineAdminNetworkPolicy(subject), netpol.NewClusterNetworkPolicy("c", v1beta1.AdminTier, 3, subject))
		}, "AdminNetworkPolicy/a 1, AdminNetworkPolicy/b 2, BaselineAdminNetworkPolicy/default, ClusterNetworkPolicy/c 3, ClusterNetworkPolicy/theirs 1"},
		{func() {
			state.Withdraw("AdminNetworkPolicy/b", "BaselineAdminNetworkPolicy/default")
			state.Apply(netpol.NewClusterNetworkPolicy("c", v1beta1.AdminTier, 4, subject))
		}, "AdminNetworkPolicy/a 1, ClusterNetworkPolicy/c 4, ClusterNetworkPolicy/theirs 1"},
	} {
		step.change()
		if err := b.Apply(t.Context(), state); err != nil {
			t.Fatal(err)
		}
		if got := w.adminPolicies(t); got != step.want {
			t.Errorf("policies are %s, want %s", got, step.want)
		}
		state = state.Clone()
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}

	if got, want := w.adminPolicies(t), "ClusterNetworkPolicy/theirs 1"; got != want {
		t.Errorf("after Close policies are %s, want %s", got, want)
	}
}

func TestAdminPoliciesOutsideTheSuiteAreRejected(t *testing.T) {
	for want, policy := range map[string]netpol.Policy{
		"namespace kube-system":                             netpol.NewAdminNetworkPolicy("a", 1, netpol.DenyFrom(netpol.Namespaces(""))),
		"policy BaselineAdminNetworkPolicy/default selects": netpol.NewBaselineAdminNetworkPolicy(netpol.On(netpol.Pods("pod=a"))),
		"ClusterNetworkPolicy/theirs":                       netpol.NewClusterNetworkPolicy("theirs", v1beta1.AdminTier, 9, netpol.On(netpol.Namespaces("ns=x"))),
	} {
		t.Run(want, func(t *testing.T) {
			w := newWorld(t)
			w.serve(false, v1Resources, v2Resources)
			foreign := netpol.NewClusterNetworkPolicy("theirs", v1beta1.AdminTier, 1)
			if _, err := w.policies.PolicyV1beta1().ClusterNetworkPolicies().Create(t.Context(), foreign, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			state := netpol.Model{}.State()
			state.Apply(policy)

			if err := w.backend(t, Config{}).Apply(t.Context(), state); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Apply = %v, want an error about %s", err, want)
			}
			if got, want := w.adminPolicies(t), "ClusterNetworkPolicy/theirs 1"; got != want {
				t.Errorf("policies are %s, want %s", got, want)
			}
		})
	}
}

// Policies that name a node name one of the cluster's.
func TestPoliciesNameNodes(t *testing.T) {
	w := newWorld(t)
	w.serve(true, v1Resources, v2Resources)
	b := w.backend(t, Config{})
	subject, to := netpol.On(netpol.Namespaces("ns=x")), netpol.DenyTo(netpol.Nodes("kubernetes.io/hostname=node-2"), netpol.Networks("192.0.2.0/24"))
	state := netpol.Model{Namespaces: []string{"x"}}.State()
	state.Apply(netpol.NewAdminNetworkPolicy("p", 1, subject, to), netpol.NewBaselineAdminNetworkPolicy(subject, to), netpol.NewClusterNetworkPolicy("p", v1beta1.AdminTier, 1, subject, to))
	if err := b.Apply(t.Context(), state); err != nil {
		t.Fatal(err)
	}

	admin, err := b.policies.PolicyV1alpha1().AdminNetworkPolicies().Get(t.Context(), "p", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	baseline, err := b.policies.PolicyV1alpha1().BaselineAdminNetworkPolicies().Get(t.Context(), "default", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := b.clusterPolicies().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(cluster.Items) != 1 {
		t.Fatalf("%v, error %v", cluster, err)
	}
	for kind, peer := range map[string]*metav1.LabelSelector{
		"AdminNetworkPolicy":         admin.Spec.Egress[0].To[0].Nodes,
		"BaselineAdminNetworkPolicy": baseline.Spec.Egress[0].To[0].Nodes,
		"ClusterNetworkPolicy":       cluster.Items[0].Spec.Egress[0].To[0].Nodes,
	} {
		if got := peer.MatchLabels["kubernetes.io/hostname"]; got != "two" {
			t.Errorf("%s names the node %q, want two", kind, got)
		}
	}
	if got := state.AdminNetworkPolicies[0].Spec.Egress[0].To[0].Nodes.MatchLabels["kubernetes.io/hostname"]; got != "node-2" {
		t.Errorf("the state's policy was changed: it names %q", got)
	}
}
