package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// kind is a cluster-scoped kind that the API server serves.
type kind struct {
	name     string
	resource schema.GroupVersionResource
}

func kindIn(version schema.GroupVersion, name, resource string) kind {
	return kind{name, version.WithResource(resource)}
}

// The kinds of objects in a netpol.State.
var (
	cidrGroup             = kindIn(schema.GroupVersion(v1alpha1.GroupVersion), "CIDRGroup", "cidrgroups")
	adminPolicy           = kindIn(schema.GroupVersion(v1alpha1.GroupVersion), "AdminNetworkPolicy", "adminnetworkpolicies")
	baselinePolicy        = kindIn(schema.GroupVersion(v1alpha1.GroupVersion), "BaselineAdminNetworkPolicy", "baselineadminnetworkpolicies")
	clusterPolicy         = kindIn(schema.GroupVersion(v1beta1.GroupVersion), "ClusterNetworkPolicy", "clusternetworkpolicies")
	clusterPolicyV1alpha2 = kindIn(schema.GroupVersion(v1alpha2.GroupVersion), "ClusterNetworkPolicy", "clusternetworkpolicies") // with the fields of v1beta1
)

// findKinds sets the kinds that the API server serves, groups before the policies that refer to
// them, and the features that their definitions have. The provider may still not enforce them.
func (b *Backend) findKinds(ctx context.Context) error {
	for _, k := range []struct {
		feature netpol.Feature // "" for none of its own
		kinds   []kind
	}{
		{"", []kind{cidrGroup}},
		{netpol.AdminNetworkPolicies, []kind{adminPolicy, baselinePolicy}},
		{netpol.ClusterNetworkPolicies, []kind{clusterPolicy}},
		{netpol.ClusterNetworkPolicies, []kind{clusterPolicyV1alpha2}},
	} {
		if slices.Contains(b.admin, k.feature) {
			continue // served in a newer version
		}
		ok, err := b.serves(k.kinds...)
		if err != nil {
			return err
		}
		if ok {
			b.kinds = append(b.kinds, k.kinds...)
		}
		if ok && k.feature != "" {
			b.admin = append(b.admin, k.feature)
		}
	}
	return b.findFields(ctx)
}

// serves reports whether the API server has all these kinds, which are of one version.
func (b *Backend) serves(kinds ...kind) (bool, error) {
	version := kinds[0].resource.GroupVersion().String()
	list, err := b.client.Discovery().ServerResourcesForGroupVersion(version)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("list resources of %s: %w", version, err)
	}
	for _, k := range kinds {
		if !slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == k.resource.Resource }) {
			return false, nil
		}
	}
	return true, nil
}

// trial is a feature and policies that have its fields.
type trial struct {
	feature  netpol.Feature
	policies []netpol.Policy
}

// trials returns what to try on the API server.
func (b *Backend) trials() []trial {
	on, names := netpol.On(netpol.Namespaces("")), netpol.AllowTo(netpol.Nodes(""), netpol.DomainNames("example.com"))
	port := netpol.DenyFrom(netpol.Namespaces("")).At(netpol.Named("", "web"))
	all := []trial{
		{netpol.ExperimentalFields, []netpol.Policy{
			netpol.NewAdminNetworkPolicy(trialName, 1000, on, names, port),
			netpol.NewClusterNetworkPolicy(trialName, v1beta1.AdminTier, 1000, on, names),
		}},
	}
	for _, feature := range slices.Sorted(maps.Keys(netpol.Proposals)) {
		if feature != netpol.NPEP182 || slices.Contains(b.kinds, cidrGroup) {
			all = append(all, trial{feature, []netpol.Policy{netpol.ProposedYAML(trialName, `{tier: Admin, priority: 1000, subject: {namespaces: {}}, `+netpol.Proposals[feature]+`}`)}})
		}
	}
	return all
}

// trialName is the name of the policies to try.
const trialName = "trial"

// findFields adds the features whose fields the API server takes, in dry runs.
func (b *Backend) findFields(ctx context.Context) error {
	for _, t := range b.trials() {
		served := slices.DeleteFunc(t.policies, func(p netpol.Policy) bool { _, err := b.kindOf(p); return err != nil })
		taken := len(served) > 0
		for _, policy := range served {
			ok, err := b.takes(ctx, policy)
			if err != nil {
				return fmt.Errorf("try the fields of %s: %w", t.feature, err)
			}
			taken = taken && ok
		}
		if taken {
			b.admin = append(b.admin, t.feature)
		}
	}
	return nil
}

// takes reports, by a dry run, whether the API server knows all fields of a policy.
func (b *Backend) takes(ctx context.Context, policy netpol.Policy) (bool, error) {
	k, err := b.kindOf(policy)
	if err != nil {
		return false, err
	}
	object, err := b.object(k, policy)
	if err != nil {
		return false, err
	}
	_, err = b.objects.Resource(k.resource).Create(ctx, object, metav1.CreateOptions{
		DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict,
	})
	if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
		return false, nil
	}
	return err == nil, err
}
