package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"sigs.k8s.io/kube-network-policies/pkg/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/compile"
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
	policies, err := dynamic.NewForConfig(rest)
	if err != nil {
		return clusterstate.Input{}, fmt.Errorf("connect to %s: %w", rest.Host, err)
	}
	if err := list(ctx, client, &in); err != nil {
		return clusterstate.Input{}, err
	}
	in.Policies, err = o.listPolicies(ctx, client.Discovery(), policies)
	return in, err
}

// list reads the objects of the cluster that client talks to, without the policies. It
// needs the right to list namespaces, pods and nodes.
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
	in.Namespaces = pointers(namespaces.Items)
	in.Pods = pointers(pods.Items)
	in.Nodes = pointers(nodes.Items)
	return nil
}

// listPolicies reads the policies of the kinds that are enabled. If the cluster does
// not serve a kind that it need not serve, there are none. If it serves the kind and
// the user may not list it, that is an error: an answer without these policies may be
// wrong.
func (o *options) listPolicies(ctx context.Context, served discovery.DiscoveryInterface, client dynamic.Interface) ([]compile.Object, error) {
	var policies []compile.Object
	enabled := o.kinds.Enabled()
	for _, k := range compile.Kinds {
		if !k.Enabled(enabled) {
			continue
		}
		ofKind, err := listKind(ctx, k, served, client)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", k.Resource.Resource, err)
		}
		policies = append(policies, ofKind...)
	}
	return policies, nil
}

func listKind(ctx context.Context, k *compile.Kind, served discovery.DiscoveryInterface, client dynamic.Interface) ([]compile.Object, error) {
	if k.Flag != "" {
		if found, err := serves(served, k.Resource); err != nil || !found {
			return nil, err
		}
	}
	list, err := client.Resource(k.Resource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	objects := make([]compile.Object, len(list.Items))
	for i := range list.Items {
		objects[i] = k.New()
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, objects[i]); err != nil {
			return nil, fmt.Errorf("read %s: %w", list.Items[i].GetName(), err)
		}
	}
	return objects, nil
}

// serves reports whether the cluster serves a resource. Listing would not show that:
// without the right to list, the answer is 403 also for a resource that does not exist.
func serves(client discovery.DiscoveryInterface, r schema.GroupVersionResource) (bool, error) {
	list, err := client.ServerResourcesForGroupVersion(r.GroupVersion().String())
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("discover the resources of %s: %w", r.GroupVersion(), err)
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
