package model

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/tests/speed/bench/cluster"
)

// One namespace in clientEvery has an application that allows ingress from an application
// of another namespace. One in dnsByNameEvery names the namespace of DNS; the others let
// their pods query DNS in any namespace by its label.
const clientEvery, dnsByNameEvery = 10, 2

// Namespace returns namespace i.
func (c *Cluster) Namespace(i int) *corev1.Namespace {
	name := c.NamespaceName(i)
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelMetadataName: name, "team": "team"}}}
}

// Policies returns the policies of namespace i. A namespace denies by default in both
// directions. Its pods may reach one another, ingress controllers and monitoring may reach
// them, and they may reach DNS. The namespaces of the cluster's own services have no
// policies.
func (c *Cluster) Policies(i int) []*networkingv1.NetworkPolicy {
	if i >= c.dns() {
		return nil
	}
	all := []*networkingv1.NetworkPolicy{
		c.policy(i, "deny", "", nil, nil),
		c.policy(i, "controller", "", peers(pods(c.NamespaceName(c.ingress()), "app", "ingress-controller")), nil),
		c.policy(i, "monitoring", "", peers(pods(c.NamespaceName(c.monitoring()), "", "")), nil),
		c.policy(i, "dns", "", nil, peers(c.dnsPeer(i))),
	}
	all = append(all, c.withinPolicies(i)...)
	if i%clientEvery == 1 {
		client := pods(c.NamespaceName(i*7%c.dns()), "app", "app-1")
		all = append(all, c.policy(i, "client", "app-0", peers(client), nil))
	}
	if i%100 >= 50 && i%100 < 50+c.Everyone {
		all = append(all, c.policy(i, "everyone", "", peers(networkingv1.NetworkPolicyPeer{NamespaceSelector: &metav1.LabelSelector{}}), nil))
	}
	return all
}

// withinPolicies returns the policies between pods of the namespace: one for all of them,
// or one for each application of a large namespace, which has one client and one server.
func (c *Cluster) withinPolicies(i int) (all []*networkingv1.NetworkPolicy) {
	apps := c.apps[c.first[i]:c.first[i+1]]
	if !c.ByLabel || len(apps)*replicas <= largeNamespace {
		own := peers(pods("", "", ""))
		return append(all, c.policy(i, "own", "", own, own))
	}
	labelOf := func(n int) string { return apps[(n+len(apps))%len(apps)].label }
	for n, a := range apps {
		all = append(all, c.policy(i, "own-"+a.label, a.label, peers(pods("", "app", labelOf(n-1))), peers(pods("", "app", labelOf(n+1)))))
	}
	return all
}

// dnsPeer returns the peer by which namespace i names the pods of DNS.
func (c *Cluster) dnsPeer(i int) networkingv1.NetworkPolicyPeer {
	peer := pods(c.NamespaceName(c.dns()), "k8s-app", "kube-dns")
	if i%dnsByNameEvery != 0 {
		peer.NamespaceSelector = &metav1.LabelSelector{}
	}
	return peer
}

// policy returns a policy with rules for peers. It selects the pods of an application, or
// all pods. Without peers for egress it is for ingress only.
func (c *Cluster) policy(i int, name, app string, from []networkingv1.NetworkPolicyPeer, to []networkingv1.NetworkPolicyPeer) *networkingv1.NetworkPolicy {
	p := cluster.Allowing(c.NamespaceName(i), "")
	p.Name, p.Spec.Ingress, p.Spec.PolicyTypes = name, nil, nil
	if app != "" {
		p.Spec.PodSelector.MatchLabels = map[string]string{"app": app}
	}
	if from != nil {
		p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: from}}
	}
	if to != nil {
		p.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{To: to}}
	}
	if from != nil || to == nil {
		p.Spec.PolicyTypes = append(p.Spec.PolicyTypes, networkingv1.PolicyTypeIngress)
	}
	if to != nil || from == nil {
		p.Spec.PolicyTypes = append(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
	}
	return p
}

func peers(p ...networkingv1.NetworkPolicyPeer) []networkingv1.NetworkPolicyPeer { return p }

// pods returns a peer for pods of a namespace, or of the policy's own if it is empty, by a
// label or for all pods.
func pods(namespace, key, value string) networkingv1.NetworkPolicyPeer {
	p := networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{}}
	if namespace != "" {
		p.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}}
	}
	if key != "" {
		p.PodSelector.MatchLabels = map[string]string{key: value}
	}
	return p
}
