package lint

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// peers finds peers that select no pod. Several rules call it; each peer is reported by the
// one rule that explains it best.
func peers(c *cluster) {
	if len(c.pods) == 0 {
		return
	}
	for _, p := range c.policies {
		for d, r := range p.rules {
			for i := range r.Peers {
				if s := r.Peers[i].Pods; s != nil {
					c.peer(p, d, r, i, s)
				}
			}
		}
	}
}

func (c *cluster) peer(p *compiled, d policy.Direction, r *policy.Rule, i int, s *policy.PodSelector) {
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
		why, elsewhere := Finding{}, ""
		if !c.Controllers || !c.outside(s) {
			elsewhere = c.elsewhere(s, p.Subject)
		}
		switch known := c.whose(s, c.nearPeer(r, i), elsewhere, &why); {
		case known || !c.Partial:
		case c.Controllers || c.outside(s) || c.isExpected(s.Pods):
			return
		default:
			why.Severity = Info
		}
		message, fix, severity = message+why.Message, why.Fix, why.Severity
	}
	if id != c.rule.ID {
		return
	}
	c.find(p, field, fix, "%s", message).Severity = severity
}

// whose says in f which pods a selector that matches none was probably meant for: those of a workload
// that has the labels itself, those of the namespace elsewhere, or those with labels near them. It
// returns false if there are none.
func (c *cluster) whose(s *policy.PodSelector, near hint, elsewhere string, f *Finding) bool {
	f.Severity = Warning
	w := c.workloadWith(s)
	switch {
	case w != nil:
		f.Message = fmt.Sprintf("; %s itself has these labels, and its pods have %s", w.Ref, labels.Set(w.Pods))
		f.Fix = fmt.Sprintf("Write the labels of its pods: %s.", labels.Set(w.Pods))
	case elsewhere != "":
		f.Message = " of namespace " + s.Namespace + "; such pods are in namespace " + elsewhere
		f.Fix = fmt.Sprintf("Add namespaceSelector with %s: %s to the item.", corev1.LabelMetadataName, elsewhere)
	case near != "":
		f.Message = "; " + string(near)
	default:
		return false
	}
	return true
}

// workloadWith returns the first workload whose own labels a selector matches, nil if there is none.
func (c *cluster) workloadWith(s *policy.PodSelector) *workloads.Labels {
	requirements, _ := s.Pods.Requirements()
	for i := range requirements {
		key, value, ok := reachability.ExactLabel(&requirements[i])
		if !ok || s.Namespace == "" {
			continue
		}
		for _, w := range c.workloads[podLabel{s.Namespace, key, value}] {
			c.compared++
			if s.Pods.Matches(labels.Set(w.Own)) {
				return w
			}
		}
		break
	}
	return nil
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
	return slices.ContainsFunc(c.namespacesMatching(s.Namespaces), func(name string) bool { return len(c.byNamespace[name]) == 0 })
}

// elsewhere returns the first other namespace with pods that a podSelector alone would select there. It
// is none with pods that subject would select, too: such a namespace is another environment.
func (c *cluster) elsewhere(s, subject *policy.PodSelector) string {
	if s.Namespace == "" || s.Pods.Empty() {
		return ""
	}
	everywhere := func(s *policy.PodSelector) *policy.PodSelector {
		return &policy.PodSelector{Namespaces: labels.Everything(), Pods: s.Pods}
	}
	key, twins := [2]string{reachability.SelectorKey(everywhere(s))}, map[string]bool{}
	if subject != nil && !subject.Pods.Empty() {
		key[1] = reachability.SelectorKey(everywhere(subject))
	}
	if name, known := c.others[key]; known {
		return name
	}
	c.others[key] = ""
	if key[1] != "" {
		for _, p := range c.selects(everywhere(subject)) {
			twins[p.object.Namespace] = true
		}
	}
	for _, p := range c.selects(everywhere(s)) {
		c.compared++
		if !twins[p.object.Namespace] {
			c.others[key] = p.object.Namespace
			break
		}
	}
	return c.others[key]
}

// isExpected reports whether policies select pods that s matches and that the files do not have:
// something else may create them.
func (c *cluster) isExpected(s labels.Selector) bool {
	if c.expected == nil {
		c.expected = map[podLabel][]labels.Set{}
		for _, p := range c.policies {
			if p.network != nil && len(p.subjects) == 0 && len(p.network.Spec.PodSelector.MatchLabels) > 0 && c.nearSubject(p) == "" {
				for key, value := range p.network.Spec.PodSelector.MatchLabels {
					label := podLabel{key: key, value: value}
					c.expected[label] = append(c.expected[label], p.network.Spec.PodSelector.MatchLabels)
				}
			}
		}
	}
	requirements, _ := s.Requirements()
	for i := range requirements {
		if key, value, ok := reachability.ExactLabel(&requirements[i]); ok {
			return slices.ContainsFunc(c.expected[podLabel{key: key, value: value}], func(l labels.Set) bool {
				c.compared++
				return s.Matches(l)
			})
		}
	}
	return false
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
			isNamed := ns != nil && !r.Matches(labels.Set(ns.Labels)) && !c.assumed[value]
			if isNamed && len(c.namespacesMatching(labels.NewSelector().Add(*r))) == 0 {
				return value
			}
		}
	}
	return ""
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
