package cluster

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// adminFeatures returns which of the administrators' kinds the API server serves and
// whether their definitions have the experimental fields. The provider may still not
// enforce them.
func (b *Backend) adminFeatures(ctx context.Context) ([]netpol.Feature, error) {
	var features []netpol.Feature
	v1, err := b.serves(v1alpha1.GroupVersion.String(), "adminnetworkpolicies", "baselineadminnetworkpolicies")
	if err != nil {
		return nil, err
	}
	if v1 {
		features = append(features, netpol.AdminNetworkPolicies)
	}
	v2, err := b.serves(v1beta1.GroupVersion.String(), "clusternetworkpolicies")
	if err == nil && !v2 {
		v2, err = b.serves(v1alpha2.GroupVersion.String(), "clusternetworkpolicies")
		b.older = v2
	}
	if err != nil {
		return nil, err
	}
	if v2 {
		features = append(features, netpol.ClusterNetworkPolicies)
	}
	experimental, err := b.takesExperimentalFields(ctx, v1, v2)
	if experimental && len(features) > 0 {
		features = append(features, netpol.ExperimentalFields)
	}
	return features, err
}

// serves reports whether the API server has all these resources.
func (b *Backend) serves(groupVersion string, resources ...string) (bool, error) {
	list, err := b.client.Discovery().ServerResourcesForGroupVersion(groupVersion)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("list resources of %s: %w", groupVersion, err)
	}
	for _, resource := range resources {
		if !slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == resource }) {
			return false, nil
		}
	}
	return true, nil
}

// takesExperimentalFields reports, by dry runs, whether the API server accepts policies
// with experimental fields.
func (b *Backend) takesExperimentalFields(ctx context.Context, v1, v2 bool) (bool, error) {
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict}
	subject, names := netpol.On(netpol.Namespaces(ownerLabel)), netpol.AllowTo(netpol.Nodes(""), netpol.DomainNames("example.com"))
	var err error
	if v1 {
		port := netpol.DenyFrom(netpol.Namespaces("")).At(netpol.Named("", "web"))
		_, err = b.policies.PolicyV1alpha1().AdminNetworkPolicies().Create(ctx, netpol.NewAdminNetworkPolicy("netpol-suite", 1000, subject, names, port), dry)
	}
	if v2 && err == nil {
		_, err = b.clusterPolicies().Create(ctx, netpol.NewClusterNetworkPolicy("netpol-suite", v1beta1.AdminTier, 1000, subject, names), dry)
	}
	if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("try experimental fields: %w", err)
	}
	return true, nil
}

// applyAdminPolicies makes the owned cluster-scoped policies match state.
func (b *Backend) applyAdminPolicies(ctx context.Context, state *netpol.State) error {
	if err := b.rejectForeignSubjects(ctx, state); err != nil {
		return err
	}
	owned := metav1.ListOptions{LabelSelector: ownerLabel + "=" + ownerValue}
	if b.has(netpol.AdminNetworkPolicies) {
		admin, baseline := b.policies.PolicyV1alpha1().AdminNetworkPolicies(), b.policies.PolicyV1alpha1().BaselineAdminNetworkPolicies()
		existing, err := admin.List(ctx, owned)
		if err != nil {
			return fmt.Errorf("list AdminNetworkPolicies: %w", err)
		}
		if err := applyOwned(ctx, b.nodes, admin, pointers(existing.Items), state.AdminNetworkPolicies); err != nil {
			return err
		}
		existingBaseline, err := baseline.List(ctx, owned)
		if err != nil {
			return fmt.Errorf("list BaselineAdminNetworkPolicies: %w", err)
		}
		if err := applyOwned(ctx, b.nodes, baseline, pointers(existingBaseline.Items), state.BaselineAdminNetworkPolicies); err != nil {
			return err
		}
	}
	if b.has(netpol.ClusterNetworkPolicies) {
		client := b.clusterPolicies()
		existing, err := client.List(ctx, owned)
		if err != nil {
			return fmt.Errorf("list ClusterNetworkPolicies: %w", err)
		}
		return applyOwned(ctx, b.nodes, client, pointers(existing.Items), state.ClusterNetworkPolicies)
	}
	return nil
}

func (b *Backend) has(feature netpol.Feature) bool { return slices.Contains(b.admin, feature) }

func pointers[T any](items []T) []*T {
	var all []*T
	for i := range items {
		all = append(all, &items[i])
	}
	return all
}

// policyClient is the set of methods that the clients of all kinds share.
type policyClient[P netpol.Policy] interface {
	Create(context.Context, P, metav1.CreateOptions) (P, error)
	Update(context.Context, P, metav1.UpdateOptions) (P, error)
	Delete(context.Context, string, metav1.DeleteOptions) error
}

// applyOwned makes the existing policies, all of them owned, match the wanted ones, with the names
// of nodes for node-1, node-2 and so on. It is an error if another owner has a policy with a wanted
// name.
func applyOwned[P netpol.Policy](ctx context.Context, nodes []string, client policyClient[P], existing, wanted []P) error {
	old := make(map[string]P)
	for _, p := range existing {
		old[p.GetName()] = p
	}
	for _, p := range wanted {
		object := p.DeepCopyObject().(P)
		object.SetLabels(map[string]string{ownerLabel: ownerValue})
		nameNodes(object, nodes)
		current, exists := old[p.GetName()]
		delete(old, p.GetName())
		var err error
		switch {
		case !exists:
			_, err = client.Create(ctx, object, metav1.CreateOptions{})
		case !equality.Semantic.DeepEqual(specOf(current), specOf(object)):
			object.SetResourceVersion(current.GetResourceVersion())
			_, err = client.Update(ctx, object, metav1.UpdateOptions{})
		}
		if err != nil {
			return fmt.Errorf("policy %s: %w", netpol.PolicyName(p), err)
		}
	}
	for name, p := range old {
		if err := client.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete policy %s: %w", netpol.PolicyName(p), err)
		}
	}
	return nil
}

// nameNodes changes the peers of a policy that are one node, by its host name.
func nameNodes(p netpol.Policy, nodes []string) {
	var peers []*metav1.LabelSelector
	switch p := p.(type) {
	case *v1alpha1.AdminNetworkPolicy:
		for _, rule := range p.Spec.Egress {
			for _, peer := range rule.To {
				peers = append(peers, peer.Nodes)
			}
		}
	case *v1alpha1.BaselineAdminNetworkPolicy:
		for _, rule := range p.Spec.Egress {
			for _, peer := range rule.To {
				peers = append(peers, peer.Nodes)
			}
		}
	case *v1beta1.ClusterNetworkPolicy:
		for _, rule := range p.Spec.Egress {
			for _, peer := range rule.To {
				peers = append(peers, peer.Nodes)
			}
		}
	}
	for _, peer := range peers {
		if peer == nil {
			continue
		}
		if i := nodeIndex(peer.MatchLabels[corev1.LabelHostname]); i >= 0 && i < len(nodes) {
			peer.MatchLabels[corev1.LabelHostname] = nodes[i]
		}
	}
}

func specOf(p netpol.Policy) any {
	switch p := p.(type) {
	case *v1alpha1.AdminNetworkPolicy:
		return p.Spec
	case *v1alpha1.BaselineAdminNetworkPolicy:
		return p.Spec
	case *v1beta1.ClusterNetworkPolicy:
		return p.Spec
	}
	return p
}

// rejectForeignSubjects returns an error if a policy selects pods in namespaces that the
// backend does not own, because a Deny there could disconnect the cluster itself.
func (b *Backend) rejectForeignSubjects(ctx context.Context, state *netpol.State) error {
	subjects := make(map[string]*metav1.LabelSelector) // namespace selectors by policy
	for _, p := range state.AdminNetworkPolicies {
		subjects[netpol.PolicyName(p)] = namespacesOf(p.Spec.Subject.Namespaces, (*v1beta1.NamespacedPod)(p.Spec.Subject.Pods))
	}
	for _, p := range state.BaselineAdminNetworkPolicies {
		subjects[netpol.PolicyName(p)] = namespacesOf(p.Spec.Subject.Namespaces, (*v1beta1.NamespacedPod)(p.Spec.Subject.Pods))
	}
	for _, p := range state.ClusterNetworkPolicies {
		subjects[netpol.PolicyName(p)] = namespacesOf(p.Spec.Subject.Namespaces, p.Spec.Subject.Pods)
	}
	if len(subjects) == 0 {
		return nil
	}
	foreign, err := b.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: ownerLabel + "!=" + ownerValue})
	if err != nil {
		return fmt.Errorf("list namespaces: %w", err)
	}
	for name, subject := range subjects {
		selector, err := metav1.LabelSelectorAsSelector(subject)
		if err != nil {
			return fmt.Errorf("policy %s: %w", name, err)
		}
		reached := slices.IndexFunc(foreign.Items, func(n corev1.Namespace) bool { return selector.Matches(labels.Set(n.Labels)) })
		if reached >= 0 {
			return fmt.Errorf("policy %s selects namespace %s, which the suite does not own", name, foreign.Items[reached].Name)
		}
	}
	return nil
}

// namespacesOf returns the namespace selector of a subject.
func namespacesOf(namespaces *metav1.LabelSelector, pods *v1beta1.NamespacedPod) *metav1.LabelSelector {
	if pods != nil {
		return &pods.NamespaceSelector
	}
	return namespaces
}
