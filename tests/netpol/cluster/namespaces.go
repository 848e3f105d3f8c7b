package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// Labels of the backend's objects.
const (
	ownerLabel = "netpol-suite/owner" // on everything that has no namespace of a suite
	ownerValue = "netpol-suite"
	runLabel   = "netpol-suite/run" // on namespaces and cluster-scoped policies: the name of the run
	podLabel   = "netpol-suite/pod" // on pods: the pod's name, for its Service

	// podSecurityLabel says which pods a namespace admits (Pod Security Standards).
	podSecurityLabel = "pod-security.kubernetes.io/enforce"
)

// ownedNamespaces returns the namespaces of this run, by name.
func (b *Backend) ownedNamespaces(ctx context.Context) (map[string]*corev1.Namespace, error) {
	list, err := b.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: b.selectOwn()})
	if err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	owned := make(map[string]*corev1.Namespace)
	for i := range list.Items {
		owned[list.Items[i].Name] = &list.Items[i]
	}
	return owned, nil
}

// selectOwn selects what has the label of this run.
func (b *Backend) selectOwn() string { return runLabel + "=" + string(b.name) }

// applyNamespaces creates, relabels and deletes owned namespaces. It is an error if a
// namespace of another owner has a wanted name.
func (b *Backend) applyNamespaces(ctx context.Context, state *netpol.State, owned map[string]*corev1.Namespace) error {
	client := b.client.CoreV1().Namespaces()
	for _, wanted := range state.Namespaces {
		object := wanted.DeepCopy()
		object.Labels[ownerLabel], object.Labels[runLabel] = ownerValue, string(b.name)
		if b.cfg.SCTP || slices.ContainsFunc(state.Pods, func(p *corev1.Pod) bool { return p.Namespace == object.Name && p.Spec.HostNetwork }) {
			object.Labels[podSecurityLabel] = "privileged"
		}
		current := owned[object.Name]
		delete(owned, object.Name)
		var err error
		switch {
		case current == nil:
			_, err = client.Create(ctx, object, metav1.CreateOptions{})
		case !maps.Equal(current.Labels, object.Labels):
			current.Labels = object.Labels
			_, err = client.Update(ctx, current, metav1.UpdateOptions{})
		}
		if err != nil {
			return fmt.Errorf("namespace %s: %w", object.Name, err)
		}
	}
	for name := range owned {
		if err := client.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete namespace %s: %w", name, err)
		}
	}
	return b.wait(ctx, "namespaces to be gone", func(ctx context.Context) (bool, error) {
		now, err := b.ownedNamespaces(ctx)
		return len(now) == len(state.Namespaces), err
	})
}

// refused returns err, as a netpol.ErrRefused if the API server finds the object invalid.
func refused(err error) error {
	if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
		return fmt.Errorf("%w: %w", netpol.ErrRefused, err)
	}
	return err
}

// applyPolicies makes the policies of owned namespaces match state.
func (b *Backend) applyPolicies(ctx context.Context, state *netpol.State) error {
	for _, namespace := range state.Namespaces {
		wanted := slices.DeleteFunc(slices.Clone(state.Policies), func(p *networkingv1.NetworkPolicy) bool {
			return p.Namespace != namespace.Name
		})
		if err := b.applyPoliciesOf(ctx, namespace.Name, wanted); err != nil {
			return err
		}
	}
	return nil
}

func (b *Backend) applyPoliciesOf(ctx context.Context, namespace string, wanted []*networkingv1.NetworkPolicy) error {
	client := b.client.NetworkingV1().NetworkPolicies(namespace)
	list, err := client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list policies of %s: %w", namespace, err)
	}
	old := make(map[string]*networkingv1.NetworkPolicy)
	for i := range list.Items {
		old[list.Items[i].Name] = &list.Items[i]
	}
	for _, policy := range wanted {
		current := old[policy.Name]
		delete(old, policy.Name)
		switch {
		case current == nil:
			_, err = client.Create(ctx, policy, metav1.CreateOptions{})
		case !equality.Semantic.DeepEqual(current.Spec, policy.Spec):
			current.Spec = policy.Spec
			_, err = client.Update(ctx, current, metav1.UpdateOptions{})
		}
		if err != nil {
			return fmt.Errorf("policy %s/%s: %w", namespace, policy.Name, refused(err))
		}
	}
	for name := range old {
		if err := client.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete policy %s/%s: %w", namespace, name, err)
		}
	}
	return nil
}
