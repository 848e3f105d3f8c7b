package lint

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// peers finds peers that select no pod. Several rules call it; each peer is reported by the
// one rule that explains it best.
func peers(c *cluster) {
	if len(c.pods) == 0 {
		return
	}
	expected := c.expectedPods()
	for _, p := range c.policies {
		for d, r := range p.rules {
			for i := range r.Peers {
				if s := r.Peers[i].Pods; s != nil {
					c.peer(p, d, r, i, s, expected)
				}
			}
		}
	}
}

func (c *cluster) peer(p *compiled, d policy.Direction, r *policy.Rule, i int, s *policy.PodSelector, expected []labels.Set) {
	pods, hosts := c.podsAndHosts(s)
	if len(pods) > 0 {
		return
	}
	id, field, message, fix := "peer-selects-none", peerField(d, r, i), selectorText(s)+" matches no pod", ""
	severity := Warning
	switch sibling := c.orNotAnd(r, i); {
	case sibling != "":
		id, message = "or-not-and", fmt.Sprintf("%s matches no pod of namespace %s; the item beside it selects all pods of namespaces with %s", selectorText(s), s.Namespace, sibling)
	case len(hosts) > 0:
		id, message = "host-network-peer", fmt.Sprintf("all pods that %s matches are in the network of their nodes: %s", selectorText(s), names(hosts))
	case c.namespaceLabel(s) != "":
		name := c.namespaceLabel(s)
		id, message = "namespace-label", fmt.Sprintf("no namespace has %s", s.Namespaces)
		fix = fmt.Sprintf("Write %s: %s.", corev1.LabelMetadataName, name)
	default:
		near, elsewhere := c.nearPeer(r, i), c.elsewhere(s)
		switch {
		case near != "":
			message += "; " + string(near)
		case elsewhere != "" && !(c.Controllers && c.outside(s)):
			message += " of namespace " + s.Namespace + "; such pods are in namespace " + elsewhere
			fix = fmt.Sprintf("Add namespaceSelector with %s: %s to the item.", corev1.LabelMetadataName, elsewhere)
		case c.Partial && (c.Controllers || c.outside(s) || slices.ContainsFunc(expected, func(l labels.Set) bool { return s.Pods.Matches(l) })):
			return
		case c.Partial:
			severity = Info
		}
	}
	if id != c.rule.ID {
		return
	}
	c.find(p, field, fix, "%s", message).Severity = severity
}

// outside reports whether s selects pods in namespaces without known pods. Such pods may
// exist outside of the files.
func (c *cluster) outside(s *policy.PodSelector) bool {
	if s.Namespace != "" {
		return len(c.byNamespace[s.Namespace]) == 0
	}
	if s.Namespaces.Empty() || len(c.namespacesOf(s.Namespaces)) == 0 {
		return true
	}
	for name, ns := range c.namespaces {
		if len(c.byNamespace[name]) == 0 && s.Namespaces.Matches(labels.Set(ns.Labels)) {
			return true
		}
	}
	return false
}

// elsewhere returns the first other namespace with pods that a podSelector alone would select there.
func (c *cluster) elsewhere(s *policy.PodSelector) string {
	if s.Namespace == "" || s.Pods.Empty() {
		return ""
	}
	there := *s
	there.Namespace, there.Namespaces = "", labels.Everything()
	if pods := c.selects(&there); len(pods) > 0 {
		return pods[0].object.Namespace
	}
	return ""
}

// expectedPods returns the labels by which policies select pods that the files do not have:
// something else may create them.
func (c *cluster) expectedPods() []labels.Set {
	var sets []labels.Set
	for _, p := range c.policies {
		if p.network != nil && len(p.subjects) == 0 && len(p.network.Spec.PodSelector.MatchLabels) > 0 && c.nearSubject(p) == "" {
			sets = append(sets, p.network.Spec.PodSelector.MatchLabels)
		}
	}
	return sets
}

// orNotAnd finds a namespaceSelector that was probably meant to be in the same item as the
// i-th item's podSelector, which matches no pod of the policy's own namespace. It returns
// the neighbouring item's namespaceSelector if both together match.
func (c *cluster) orNotAnd(r *policy.Rule, i int) string {
	s := r.Peers[i].Pods
	if s.Namespace == "" || s.Pods.Empty() || len(c.byNamespace[s.Namespace]) == 0 {
		return ""
	}
	for _, j := range []int{i - 1, i + 1} {
		if j < 0 || j >= len(r.Peers) {
			continue
		}
		o := r.Peers[j].Pods
		if o == nil || o.Namespace != "" || !o.Pods.Empty() {
			continue
		}
		joined := &policy.PodSelector{Namespaces: o.Namespaces, Pods: s.Pods}
		if pods, hosts := c.podsAndHosts(joined); len(pods)+len(hosts) > 0 || c.outside(o) {
			return namespacesText(o.Namespaces)
		}
	}
	return ""
}

func namespacesText(s labels.Selector) string {
	if s.Empty() {
		return "any labels"
	}
	return s.String()
}

// namespaceLabel returns the name of the namespace that a selector probably means. Its
// label is on no namespace.
func (c *cluster) namespaceLabel(s *policy.PodSelector) string {
	if s.Namespace != "" {
		return ""
	}
	requirements, _ := s.Namespaces.Requirements()
	for i := range requirements {
		r := &requirements[i]
		if r.Operator() != selection.In && r.Operator() != selection.Equals || r.Key() == corev1.LabelMetadataName {
			continue
		}
		for _, value := range slices.Sorted(maps.Keys(r.Values())) {
			ns := c.namespaces[value]
			isNamed := ns != nil && !r.Matches(labels.Set(ns.Labels)) && !slices.Contains(c.AssumedNamespaces, value)
			if isNamed && len(c.namespacesWith(r)) == 0 {
				return value
			}
		}
	}
	return ""
}

// namespacesWith returns the namespaces whose labels satisfy r, with or without pods.
func (c *cluster) namespacesWith(r *labels.Requirement) []string {
	var found []string
	for name, ns := range c.namespaces {
		if r.Matches(labels.Set(ns.Labels)) {
			found = append(found, name)
		}
	}
	return found
}

// emptyPeers finds lists that are written but empty.
func emptyPeers(c *cluster) {
	for _, p := range c.policies {
		if p.admin() {
			continue
		}
		for i, r := range p.network.Spec.Ingress {
			if r.From != nil && len(r.From) == 0 {
				c.find(p, fmt.Sprintf("spec.ingress[%d].from", i), "", "the list is empty: every peer is allowed")
			}
		}
		for i, r := range p.network.Spec.Egress {
			if r.To != nil && len(r.To) == 0 {
				c.find(p, fmt.Sprintf("spec.egress[%d].to", i), "", "the list is empty: every peer is allowed")
			}
		}
	}
}
