package model

import (
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// named selects the pods that a rule names.
type named struct {
	namespaces []bool
	pods       labels.Selector
}

// Named returns how many pods concern a node with these pods: its own pods, and pods of
// other nodes that are named by a rule of a policy that selects one of its own. Each counts
// once. A node that knows fewer cannot enforce its policies, however it learns of pods.
func (c *Cluster) Named(node int, own []Pod) (n int) {
	var peers []named
	namespaces := make([]labels.Set, c.Namespaces)
	for i := range namespaces {
		namespaces[i] = c.Namespace(i).Labels
	}
	seen := map[string]bool{}
	for _, p := range own {
		for _, policy := range c.Policies(p.Namespace) {
			if key := policy.Namespace + "/" + policy.Name; !seen[key] && mustSelect(&policy.Spec.PodSelector).Matches(p.Labels()) {
				seen[key] = true
				peers = append(peers, peersOf(policy, p.Namespace, namespaces)...)
			}
		}
	}
	for _, a := range c.apps {
		// Replicas have the same labels in policies.
		all := len(a.pods) > 0 && slices.ContainsFunc(peers, func(n named) bool { return n.has(a.pods[0]) })
		for _, p := range a.pods {
			if all || p.Node == node {
				n++
			}
		}
	}
	return n
}

// peersOf returns the pods that the rules of a namespace's policy name. namespaces has the
// labels of all namespaces.
func peersOf(policy *networkingv1.NetworkPolicy, namespace int, namespaces []labels.Set) (all []named) {
	var peers []networkingv1.NetworkPolicyPeer
	for _, r := range policy.Spec.Ingress {
		peers = append(peers, r.From...)
	}
	for _, r := range policy.Spec.Egress {
		peers = append(peers, r.To...)
	}
	for _, p := range peers {
		ownNamespace := named{make([]bool, len(namespaces)), labels.Everything()}
		if p.PodSelector != nil {
			ownNamespace.pods = mustSelect(p.PodSelector)
		}
		if p.NamespaceSelector == nil {
			ownNamespace.namespaces[namespace] = true
		} else {
			selector := mustSelect(p.NamespaceSelector)
			for i, labels := range namespaces {
				ownNamespace.namespaces[i] = selector.Matches(labels)
			}
		}
		all = append(all, ownNamespace)
	}
	return all
}

func (n named) has(p Pod) bool { return n.namespaces[p.Namespace] && n.pods.Matches(p.Labels()) }

func mustSelect(s *metav1.LabelSelector) labels.Selector {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		panic(err) // the model formatted it
	}
	return selector
}
