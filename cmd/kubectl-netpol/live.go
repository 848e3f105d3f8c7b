package main

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
)

func isAddress(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}

// live reads the kubeconfig's cluster as far as the user may. o.limits says what could not
// be read.
func (o *options) live(ctx context.Context) (clusterstate.Input, error) {
	config := o.clientConfig()
	rest, err := config.ClientConfig()
	if err != nil {
		return clusterstate.Input{}, fmt.Errorf("read kubeconfig (or name manifests with -f): %w", err)
	}
	if o.namespace == "" {
		if ns, _, err := config.Namespace(); err == nil {
			o.defaultNamespace = ns
		}
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return clusterstate.Input{}, fmt.Errorf("connect to %s: %w", rest.Host, err)
	}
	policies, err := dynamic.NewForConfig(rest)
	if err != nil {
		return clusterstate.Input{}, fmt.Errorf("connect to %s: %w", rest.Host, err)
	}
	r := &reader{
		client: client, policies: policies, kinds: o.adminKinds(), namespaces: o.mayRead(), templates: o.templates,
		in: clusterstate.Input{Features: o.features}, selectors: map[workloads.Ref]*metav1.LabelSelector{},
	}
	err = r.read(ctx)
	o.workloads = r.workloads
	o.limits, o.services, o.selectors, o.exposing, o.exposingLimit = r.limits, r.services, r.selectors, r.exposing, r.exposingLimit
	return r.in, err
}

// mayRead returns the namespaces to read if the user may not read all of them.
func (o *options) mayRead() []string {
	all := []string{cmp.Or(o.namespace, o.defaultNamespace, metav1.NamespaceDefault)}
	for _, name := range o.named {
		if w, err := workloads.Parse(name); err == nil && w.Namespace != "" {
			all = append(all, w.Namespace)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
