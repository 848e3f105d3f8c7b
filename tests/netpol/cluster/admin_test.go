package cluster

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// allKinds are what an API server may serve.
var allKinds = []kind{cidrGroup, adminPolicy, baselinePolicy, clusterPolicy, clusterPolicyV1alpha2}

// The resources of the versions.
var (
	v1Resources  = &metav1.APIResourceList{GroupVersion: "policy.networking.k8s.io/v1alpha1", APIResources: []metav1.APIResource{{Name: "adminnetworkpolicies"}, {Name: "baselineadminnetworkpolicies"}, {Name: "cidrgroups"}}}
	oldResources = &metav1.APIResourceList{GroupVersion: "policy.networking.k8s.io/v1alpha2", APIResources: []metav1.APIResource{{Name: "clusternetworkpolicies"}}}
	v2Resources  = &metav1.APIResourceList{GroupVersion: "policy.networking.k8s.io/v1beta1", APIResources: []metav1.APIResource{{Name: "clusternetworkpolicies"}}}
)

// Parts of policies with fields that a definition may lack.
const (
	noExperimental    = `"domainNames"`
	noIngressNetworks = `"from":[{"networks"`
	noAccounts        = `"serviceAccounts"`
	noGroups          = `"cidrGroups"`
	noAll             = `"all"`
)

var standard = []string{noExperimental, noIngressNetworks, noAccounts, noGroups, noAll}

// serve adds resources to the world. Dry runs store nothing. Policies that have one of the texts are
// refused.
func (w *world) serve(refused []string, resources ...*metav1.APIResourceList) {
	w.Resources = resources
	w.objects.PrependReactor("create", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create := action.(clienttesting.CreateActionImpl)
		object := create.GetObject().(*unstructured.Unstructured)
		text, err := object.MarshalJSON()
		if err != nil {
			return true, nil, err
		}
		if create.CreateOptions.FieldValidation != metav1.FieldValidationStrict {
			return true, nil, errors.New("unknown fields would be dropped")
		}
		if slices.ContainsFunc(refused, func(field string) bool { return strings.Contains(string(text), field) }) {
			return true, nil, apierrors.NewBadRequest("strict decoding error: unknown field")
		}
		return len(create.CreateOptions.DryRun) > 0, object, nil
	})
}

func TestSupportedPolicyKinds(t *testing.T) {
	noBaseline := v1Resources.DeepCopy()
	noBaseline.APIResources = noBaseline.APIResources[:1]
	noCIDRGroups := v1Resources.DeepCopy()
	noCIDRGroups.APIResources = noCIDRGroups.APIResources[:2]
	for _, c := range []struct {
		name      string
		refused   []string
		resources []*metav1.APIResourceList
		want      []netpol.Feature
	}{
		{"neither", nil, nil, nil},
		{"v1alpha1", standard, []*metav1.APIResourceList{v1Resources}, []netpol.Feature{netpol.AdminNetworkPolicies}},
		{"v1alpha1 without the baseline", nil, []*metav1.APIResourceList{noBaseline}, nil},
		{"v1beta1", standard[1:], []*metav1.APIResourceList{v2Resources}, []netpol.Feature{netpol.ClusterNetworkPolicies, netpol.ExperimentalFields}},
		{"v1alpha2", standard, []*metav1.APIResourceList{oldResources}, []netpol.Feature{netpol.ClusterNetworkPolicies}},
		{"both", standard, []*metav1.APIResourceList{v1Resources, v2Resources}, []netpol.Feature{netpol.AdminNetworkPolicies, netpol.ClusterNetworkPolicies}},
		{"one proposal", []string{noExperimental, noAccounts, noGroups, noAll}, []*metav1.APIResourceList{v2Resources}, []netpol.Feature{netpol.ClusterNetworkPolicies, netpol.NPEP127}},
		{"groups are not a kind", []string{noExperimental}, []*metav1.APIResourceList{noCIDRGroups, v2Resources},
			[]netpol.Feature{netpol.AdminNetworkPolicies, netpol.ClusterNetworkPolicies, netpol.NPEP127, netpol.NPEP173, netpol.NPEP248}},
		{"everything", nil, []*metav1.APIResourceList{v1Resources, v2Resources},
			[]netpol.Feature{netpol.AdminNetworkPolicies, netpol.ClusterNetworkPolicies, netpol.ExperimentalFields, netpol.NPEP127, netpol.NPEP173, netpol.NPEP182, netpol.NPEP248}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.serve(c.refused, c.resources...)
			ways := []netpol.Feature{netpol.Services, netpol.NodePorts, netpol.LoadBalancers}
			if got, want := w.backend(t, Config{}).Supports().Features, append(ways, c.want...); !slices.Equal(got, want) {
				t.Errorf("features are %q, want %q", got, want)
			}
		})
	}
}

// list returns the world's objects of a kind.
func (w *world) list(t *testing.T, k kind) []unstructured.Unstructured {
	t.Helper()
	list, err := w.objects.Resource(k.resource).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// adminPolicies lists the world's administrators' policies with their priorities, and groups with
// their labels.
func (w *world) adminPolicies(t *testing.T) string {
	t.Helper()
	var all []string
	for _, k := range allKinds {
		for _, object := range w.list(t, k) {
			text := netpol.PolicyName(&object)
			if priority, found, _ := unstructured.NestedInt64(object.Object, "spec", "priority"); found {
				text += fmt.Sprint(" ", priority)
			}
			if label := object.GetLabels()["env"]; label != "" {
				text += " env=" + label
			}
			all = append(all, text)
		}
	}
	return strings.Join(all, ", ")
}

// createForeign creates a policy that the backend does not own.
func (w *world) createForeign(t *testing.T, k kind) {
	t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"priority": int64(1)}}}
	object.SetGroupVersionKind(k.resource.GroupVersion().WithKind(k.name))
	object.SetName("t-theirs")
	if _, err := w.objects.Resource(k.resource).Create(t.Context(), object, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}); err != nil {
		t.Fatal(err)
	}
}

func TestApplyAdminPolicies(t *testing.T) {
	t.Run("v1beta1", func(t *testing.T) { testApplyAdminPolicies(t, clusterPolicy, v2Resources) })
	t.Run("v1alpha2", func(t *testing.T) { testApplyAdminPolicies(t, clusterPolicyV1alpha2, oldResources) })
}

func testApplyAdminPolicies(t *testing.T, k kind, served *metav1.APIResourceList) {
	w := newWorld(t)
	w.serve(standard, v1Resources, served)
	w.createForeign(t, k)
	b := w.backend(t, Config{})
	subject := netpol.On(netpol.Namespaces("ns in (x,y)"))
	state := netpol.Model{}.State()
	for _, step := range []struct {
		change func()
		want   string
	}{
		{func() {
			state.Apply(netpol.NewAdminNetworkPolicy("a", 1, subject), netpol.NewAdminNetworkPolicy("b", 2, subject),
				netpol.NewBaselineAdminNetworkPolicy(subject), netpol.NewClusterNetworkPolicy("c", v1beta1.AdminTier, 3, subject),
				netpol.NewCIDRGroup("g", "env=own"))
		}, "CIDRGroup/t-g env=own, AdminNetworkPolicy/t-a 1, AdminNetworkPolicy/t-b 2, BaselineAdminNetworkPolicy/default, ClusterNetworkPolicy/t-c 3, ClusterNetworkPolicy/t-theirs 1"},
		{func() {
			state.Withdraw("AdminNetworkPolicy/b", "BaselineAdminNetworkPolicy/default")
			state.Apply(netpol.NewClusterNetworkPolicy("c", v1beta1.AdminTier, 4, subject), netpol.NewCIDRGroup("g", "env=cloud"))
		}, "CIDRGroup/t-g env=cloud, AdminNetworkPolicy/t-a 1, ClusterNetworkPolicy/t-c 4, ClusterNetworkPolicy/t-theirs 1"},
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

	if got, want := w.adminPolicies(t), "ClusterNetworkPolicy/t-theirs 1"; got != want {
		t.Errorf("after Close policies are %s, want %s", got, want)
	}
}

// What a policy selects is of its run, however the scenario selects it.
func TestAdminPoliciesSelectTheirRun(t *testing.T) {
	for name, policy := range map[string]netpol.Policy{
		"all namespaces": netpol.NewAdminNetworkPolicy("a", 1, netpol.DenyFrom(netpol.Namespaces(""))),
		"pods":           netpol.NewBaselineAdminNetworkPolicy(netpol.On(netpol.Pods("pod=a"))),
		"labels":         netpol.NewClusterNetworkPolicy("p", v1beta1.AdminTier, 9, netpol.On(netpol.Namespaces("ns in (x, y)"))),
		"accounts":       netpol.ProposedYAML("p", "{subject: {serviceAccounts: {namespaceSelector: {}, names: [a]}}}"),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.serve(nil, v1Resources, v2Resources)
			state := netpol.Model{}.State()
			state.Apply(policy)
			if err := w.backend(t, Config{}).Apply(t.Context(), state); err != nil {
				t.Fatal(err)
			}
			for _, k := range allKinds {
				for _, object := range w.list(t, k) {
					text := fmt.Sprint(object.Object["spec"].(map[string]any)["subject"])
					if strings.Count(text, "matchLabels:map[netpol-suite/run:t]") != 1 {
						t.Errorf("the subject is %s", text)
					}
				}
			}
		})
	}
}

// A subject that could be any pods, and a name that is taken, are errors. What was there stays.
func TestAdminPoliciesThatAreNotApplied(t *testing.T) {
	for want, policy := range map[string]netpol.Policy{
		"subject has no known field":                                    netpol.ProposedYAML("p", "{subject: {planets: {}}}"),
		"ClusterNetworkPolicy/t-theirs: exists, and is not of this run": netpol.NewClusterNetworkPolicy("theirs", v1beta1.AdminTier, 9, netpol.On(netpol.Namespaces("ns=x"))),
	} {
		t.Run(want, func(t *testing.T) {
			w := newWorld(t)
			w.serve(nil, v1Resources, v2Resources)
			w.createForeign(t, clusterPolicy)
			state := netpol.Model{}.State()
			state.Apply(policy)

			if err := w.backend(t, Config{}).Apply(t.Context(), state); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Apply = %v, want an error about %s", err, want)
			}
			if got, want := w.adminPolicies(t), "ClusterNetworkPolicy/t-theirs 1"; got != want {
				t.Errorf("policies are %s, want %s", got, want)
			}
		})
	}
}

// A policy of a kind that the API server does not serve is not left out silently.
func TestPolicyOfAnUnknownKind(t *testing.T) {
	w := newWorld(t)
	w.serve(nil, v2Resources)
	state := netpol.Model{}.State()
	state.Apply(netpol.NewCIDRGroup("g", ""))
	if err := w.backend(t, Config{}).Apply(t.Context(), state); err == nil || !strings.Contains(err.Error(), "CIDRGroup/g") {
		t.Errorf("Apply = %v, want an error about CIDRGroup/g", err)
	}
}

// Policies that name a node name one of the cluster's.
func TestPoliciesNameNodes(t *testing.T) {
	w := newWorld(t)
	w.serve(nil, v1Resources, v2Resources)
	b := w.backend(t, Config{})
	subject, to := netpol.On(netpol.Namespaces("ns=x")), netpol.DenyTo(netpol.Nodes("kubernetes.io/hostname=node-2"), netpol.Networks("192.0.2.0/24"))
	state := netpol.Model{Namespaces: []string{"x"}}.State()
	state.Apply(netpol.NewAdminNetworkPolicy("p", 1, subject, to), netpol.NewBaselineAdminNetworkPolicy(subject, to), netpol.NewClusterNetworkPolicy("p", v1beta1.AdminTier, 1, subject, to),
		netpol.ProposedYAML("q", "{subject: {namespaces: {matchLabels: {ns: x}}}, ingress: [{action: Deny, from: [{nodes: {matchLabels: {kubernetes.io/hostname: node-2}}}]}]}"))
	if err := b.Apply(t.Context(), state); err != nil {
		t.Fatal(err)
	}

	written := 0
	for _, k := range allKinds {
		for _, object := range w.list(t, k) {
			written++
			name, _, _ := unstructured.NestedString(peers(&object)[0], "nodes", "matchLabels", "kubernetes.io/hostname")
			if name != "two" {
				t.Errorf("%s names the node %q, want two", netpol.PolicyName(&object), name)
			}
		}
	}
	if written != 4 {
		t.Errorf("%d policies are written, want 4", written)
	}
	if got := state.AdminNetworkPolicies[0].Spec.Egress[0].To[0].Nodes.MatchLabels["kubernetes.io/hostname"]; got != "node-2" {
		t.Errorf("the state's policy was changed: it names %q", got)
	}
}
