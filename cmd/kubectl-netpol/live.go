package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"
	policyapi "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned"

	"sigs.k8s.io/kube-network-policies/pkg/clusterstate"
)

func isAddress(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}

// live lists the cluster of the kubeconfig.
func (o *options) live(ctx context.Context) (clusterstate.Input, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: o.context}
	config := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
	rest, err := config.ClientConfig()
	if err != nil {
		return clusterstate.Input{}, fmt.Errorf("read kubeconfig (or name manifests with -f): %w", err)
	}
	if o.namespace == "" {
		if ns, _, err := config.Namespace(); err == nil {
			o.defaultNamespace = ns
		}
	}
	in := clusterstate.Input{Features: o.features}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return clusterstate.Input{}, fmt.Errorf("connect to %s: %w", rest.Host, err)
	}
	if err := list(ctx, client, &in); err != nil {
		return clusterstate.Input{}, err
	}
	admin, err := policyapi.NewForConfig(rest)
	if err != nil {
		return clusterstate.Input{}, fmt.Errorf("connect to %s: %w", rest.Host, err)
	}
	if err := o.listAdmin(ctx, admin, &in); err != nil {
		return clusterstate.Input{}, err
	}
	return in, nil
}

// list reads the cluster that client talks to. It needs the right to list
// namespaces, pods, nodes and networkpolicies of all namespaces.
func list(ctx context.Context, client kubernetes.Interface, in *clusterstate.Input) error {
	all := metav1.ListOptions{}
	namespaces, err := client.CoreV1().Namespaces().List(ctx, all)
	if err != nil {
		return fmt.Errorf("list namespaces: %w", err)
	}
	pods, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, all)
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, all)
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	policies, err := client.NetworkingV1().NetworkPolicies(metav1.NamespaceAll).List(ctx, all)
	if err != nil {
		return fmt.Errorf("list networkpolicies: %w", err)
	}
	in.Namespaces = pointers(namespaces.Items)
	in.Pods = pointers(pods.Items)
	in.Nodes = pointers(nodes.Items)
	in.NetworkPolicies = pointers(policies.Items)
	return nil
}

// listAdmin reads the policies of administrators that count. Of a kind that the
// cluster does not serve there are none. One that it serves and the user may not
// list is an error: an answer without its policies may be wrong.
func (o *options) listAdmin(ctx context.Context, client policyapi.Interface, in *clusterstate.Input) error {
	all := metav1.ListOptions{}
	v1, v2 := schema.GroupVersion(v1alpha1.GroupVersion), schema.GroupVersion(v1alpha2.GroupVersion)
	for _, kind := range []struct {
		counts   bool
		resource schema.GroupVersionResource
		list     func() error
	}{
		{o.adminPolicies, v1.WithResource("adminnetworkpolicies"), func() error {
			list, err := client.PolicyV1alpha1().AdminNetworkPolicies().List(ctx, all)
			if err == nil {
				in.AdminNetworkPolicies = pointers(list.Items)
			}
			return err
		}},
		{o.baselinePolicies, v1.WithResource("baselineadminnetworkpolicies"), func() error {
			list, err := client.PolicyV1alpha1().BaselineAdminNetworkPolicies().List(ctx, all)
			if err == nil {
				in.BaselineAdminNetworkPolicies = pointers(list.Items)
			}
			return err
		}},
		{o.clusterPolicies, v2.WithResource("clusternetworkpolicies"), func() error {
			list, err := client.PolicyV1alpha2().ClusterNetworkPolicies().List(ctx, all)
			if err == nil {
				in.ClusterNetworkPolicies = pointers(list.Items)
			}
			return err
		}},
	} {
		if !kind.counts {
			continue
		}
		served, err := serves(client.Discovery(), kind.resource)
		if err == nil && served {
			err = kind.list()
		}
		if err != nil {
			return fmt.Errorf("list %s: %w", kind.resource.Resource, err)
		}
	}
	return nil
}

// serves reports whether the cluster serves a resource. Listing would not show that:
// without the right to list, the answer is 403 also for a resource that does not exist.
func serves(client discovery.DiscoveryInterface, r schema.GroupVersionResource) (bool, error) {
	list, err := client.ServerResourcesForGroupVersion(r.GroupVersion().String())
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("ask for the resources of %s: %w", r.GroupVersion(), err)
	}
	return slices.ContainsFunc(list.APIResources, func(a metav1.APIResource) bool { return a.Name == r.Resource }), nil
}

func pointers[T any](items []T) []*T {
	out := make([]*T, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out
}
