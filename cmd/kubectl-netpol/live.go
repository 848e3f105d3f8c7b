package main

import (
	"context"
	"fmt"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
)

func isAddress(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}

// live lists the cluster of the kubeconfig.
func (o *options) live(ctx context.Context) (compile.Input, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: o.context}
	config := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
	rest, err := config.ClientConfig()
	if err != nil {
		return compile.Input{}, fmt.Errorf("read kubeconfig (or name manifests with -f): %w", err)
	}
	if o.namespace == "" {
		if ns, _, err := config.Namespace(); err == nil {
			o.defaultNamespace = ns
		}
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return compile.Input{}, fmt.Errorf("connect to %s: %w", rest.Host, err)
	}
	return o.list(ctx, client)
}

// list reads the cluster that client talks to. It needs the right to list
// namespaces, pods, nodes and networkpolicies of all namespaces.
func (o *options) list(ctx context.Context, client kubernetes.Interface) (compile.Input, error) {
	features, err := o.features()
	if err != nil {
		return compile.Input{}, err
	}
	in := compile.Input{Features: features}
	all := metav1.ListOptions{}
	namespaces, err := client.CoreV1().Namespaces().List(ctx, all)
	if err != nil {
		return compile.Input{}, fmt.Errorf("list namespaces: %w", err)
	}
	pods, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, all)
	if err != nil {
		return compile.Input{}, fmt.Errorf("list pods: %w", err)
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, all)
	if err != nil {
		return compile.Input{}, fmt.Errorf("list nodes: %w", err)
	}
	policies, err := client.NetworkingV1().NetworkPolicies(metav1.NamespaceAll).List(ctx, all)
	if err != nil {
		return compile.Input{}, fmt.Errorf("list networkpolicies: %w", err)
	}
	in.Namespaces = pointers(namespaces.Items)
	in.Pods = pointers(pods.Items)
	in.Nodes = pointers(nodes.Items)
	in.NetworkPolicies = pointers(policies.Items)
	return in, nil
}

func pointers[T any](items []T) []*T {
	out := make([]*T, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out
}
