package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

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
	c, err := o.connect()
	if clientcmd.IsEmptyConfig(errors.Unwrap(err)) {
		err = fmt.Errorf("read kubeconfig (or name manifests with -f): %w", errors.Unwrap(err))
	}
	if err != nil {
		return clusterstate.Input{}, err
	}
	if o.namespace == "" {
		if ns, _, err := o.clientConfig().Namespace(); err == nil {
			o.defaultNamespace = ns
		}
	}
	r := &reader{
		client: c.client, policies: c.objects, kinds: o.adminKinds(), namespaces: o.mayRead(), templates: o.templates,
		in: clusterstate.Input{Features: o.features}, selectors: map[workloads.Ref]*metav1.LabelSelector{},
	}
	err = r.read(ctx)
	o.workloads = r.workloads
	o.limits, o.services, o.selectors, o.exposing, o.exposingLimit = r.limits, r.services, r.selectors, r.exposing, r.exposingLimit
	return r.in, err
}

// connection is a live cluster.
type connection struct {
	access  *rest.Config
	client  kubernetes.Interface
	objects dynamic.Interface
}

// connect returns the kubeconfig's cluster.
func (o *options) connect(set ...func(*rest.Config)) (*connection, error) {
	access, err := o.clientConfig().ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	for _, f := range set {
		f(access)
	}
	client, err := kubernetes.NewForConfig(access)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", access.Host, err)
	}
	objects, err := dynamic.NewForConfig(access)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", access.Host, err)
	}
	return &connection{access, client, objects}, nil
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
