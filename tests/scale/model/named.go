package model

import (
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// named are pods that a rule names.
type named struct {
	namespaces []bool
	pods       labels.Selector
}

// Named returns how many pods concern a node with these pods: its own ones, and those of other
// nodes that a rule names of a policy that selects one of its own. Each counts once. No node that
// knows fewer can enforce its policies, however it learns of them.
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
		// Replicas have the labels that policies name.
		all := len(a.pods) > 0 && slices.ContainsFunc(peers, func(n named) bool { return n.has(a.pods[0]) })
		for _, p := range a.pods {
			if all || p.Node == node {
				n++
			}
		}
	}
	return n
}

// peersOf returns the pods that the rules of a policy of a namespace name. namespaces are the
// labels of all.
func peersOf(policy *networkingv1.NetworkPolicy, namespace int, namespaces []labels.Set) (all []named) {
	var peers []networkingv1.NetworkPolicyPeer
	for _, r := range policy.Spec.Ingress {
		peers = append(peers, r.From...)
	}
	for _, r := range policy.Spec.Egress {
		peers = append(peers, r.To...)
	}
	for _, p := range peers {
		of := named{make([]bool, len(namespaces)), labels.Everything()}
		if p.PodSelector != nil {
			of.pods = mustSelect(p.PodSelector)
		}
		if p.NamespaceSelector == nil {
			of.namespaces[namespace] = true
		} else {
			selector := mustSelect(p.NamespaceSelector)
			for i, labels := range namespaces {
				of.namespaces[i] = selector.Matches(labels)
			}
		}
		all = append(all, of)
	}
	return all
}

func (n named) has(p Pod) bool { return n.namespaces[p.Namespace] && n.pods.Matches(p.Labels()) }

func mustSelect(s *metav1.LabelSelector) labels.Selector {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		panic(err) // it is the model's own
	}
	return selector
}
