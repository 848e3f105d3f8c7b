package lint

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// subjectField returns the path of the field that selects a policy's pods.
func subjectField(p *compiled) string {
	switch spec := p.Kind.AdminSpec(p.object); {
	case spec == nil:
		return "spec.podSelector"
	case spec.Subject.Pods != nil:
		return "spec.subject.pods"
	case spec.Subject.ServiceAccounts != nil:
		return "spec.subject.serviceAccounts"
	}
	return "spec.subject.namespaces"
}

// misplaced reports whether the policy is in a namespace without known pods, while other
// namespaces have some.
func (c *cluster) misplaced(p *compiled) bool {
	return !p.admin() && len(c.pods) > 0 && len(c.byNamespace[p.Ref.Namespace]) == 0
}

// unreadable reports whether the subject could not be read, which is a finding of the
// agents.
func unreadable(p *compiled) bool {
	return p.Subject == nil || slices.ContainsFunc(p.Findings, func(f policy.Finding) bool { return f.Whole })
}

func selectsNoPod(c *cluster) {
	for _, p := range c.policies {
		if len(p.subjects)+len(p.hosts) > 0 || len(c.pods) == 0 || c.misplaced(p) || unreadable(p) {
			continue
		}
		f := Finding{}
		if !c.whose(p.Subject, c.nearSubject(p), "", &f) && c.Partial {
			if p.admin() || c.Controllers {
				continue // its pods are elsewhere, or made later
			}
			f = Finding{Message: " of the input", Severity: Info}
		}
		c.find(p, subjectField(p), f.Fix, "%s matches no pod%s", selectorText(p.Subject), f.Message).Severity = f.Severity
	}
}

func onlyHostNetwork(c *cluster) {
	for _, p := range c.policies {
		if len(p.subjects) == 0 && len(p.hosts) > 0 {
			c.find(p, subjectField(p), "", "all pods that %s matches are in the network of their nodes: %s", selectorText(p.Subject), names(p.hosts))
		}
	}
}

func namespaceWithoutPods(c *cluster) {
	for _, p := range c.policies {
		if !c.misplaced(p) || unreadable(p) {
			continue
		}
		found := c.elsewhere(p.Subject, nil)
		if found == "" && c.Partial && c.Controllers {
			continue
		}
		f := c.find(p, "metadata.namespace", "", "namespace %s has no pods", p.Ref.Namespace)
		switch {
		case found != "":
			f.Message += "; such pods are in namespace " + found
			f.Fix = fmt.Sprintf("Write namespace: %s.", found)
		case c.Partial:
			f.Severity = Info
		}
	}
}

// nameLabels are labels whose values name a workload.
var nameLabels = []string{"app.kubernetes.io/name", "app.kubernetes.io/component", "app", "k8s-app", "component"}

// noDefaultDeny finds namespaces with pods that nothing isolates for ingress. In files it
// looks only at namespaces with a policy.
func noDefaultDeny(c *cluster) {
	denied := map[*pod]bool{}
	hasPolicy := map[string]bool{}
	for _, p := range c.policies {
		hasPolicy[p.Ref.Namespace] = true
		denies := p.isolates(policy.Ingress) || slices.ContainsFunc(p.Rules(policy.Ingress), func(r policy.Rule) bool { return r.Action == policy.Deny })
		if denies {
			for _, pod := range p.subjects {
				denied[pod] = true
			}
		}
	}
	for ns, pods := range c.byNamespace {
		if isSystem(ns) || c.Partial && !hasPolicy[ns] && len(c.policies) > 0 {
			continue // its policies have another owner
		}
		open := slices.DeleteFunc(slices.Clone(pods), func(p *pod) bool { return p.host || denied[p] })
		if len(open) > 0 {
			c.findAt(Object{Kind: "Namespace", Name: ns}, "", "", "no policy isolates %s", names(open))
		}
	}
}

// isSystem reports whether the namespace belongs to Kubernetes itself, so that its users do
// not write its policies.
func isSystem(namespace string) bool {
	return namespace == corev1.NamespaceNodeLease || namespace == metav1.NamespacePublic || namespace == metav1.NamespaceSystem
}
