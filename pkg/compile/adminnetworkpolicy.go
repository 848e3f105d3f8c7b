package compile

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

const v1alpha1PortsField = "ports"

var adminNetworkPolicyActions = []string{actionAllow, actionDeny, actionPass}

// KindAdminNetworkPolicy is version v1alpha1.
var KindAdminNetworkPolicy = policyKind(Kind{
	Name:           "AdminNetworkPolicy",
	Resource:       schema.GroupVersion(v1alpha1.GroupVersion).WithResource("adminnetworkpolicies"),
	Flag:           "admin-network-policy",
	HasStatus:      true,
	HasDomainNames: true,
	PortsField:     v1alpha1PortsField,
	Docs:           "docs/semantics.md#administrators-policies",
}, func(m metav1.ObjectMeta, o *v1alpha1.AdminNetworkPolicy) *v1alpha1.AdminNetworkPolicy {
	return &v1alpha1.AdminNetworkPolicy{ObjectMeta: m, Spec: o.Spec}
}, compileAdminNetworkPolicy)

func compileAdminNetworkPolicy(d *diagnosis, o *v1alpha1.AdminNetworkPolicy) *Policy {
	p := &Policy{spec: &o.Spec, Tier: policy.AdminTier, priority: o.Spec.Priority}
	d.v1alpha1(p, &o.Spec, adminNetworkPolicyActions)
	return p
}

// v1alpha1 compiles what AdminNetworkPolicy and BaselineAdminNetworkPolicy have
// in common into p.
func (d *diagnosis) v1alpha1(p *Policy, spec *v1alpha1.AdminNetworkPolicySpec, actions []string) {
	p.Subject = d.subject(v1alpha1Subject(spec.Subject))
	for i, r := range spec.Ingress {
		at := ruleAt(policy.Ingress, i)
		p.rules[policy.Ingress] = append(p.rules[policy.Ingress], d.adminRule(adminRuleSpec{
			at: at, action: string(r.Action), actions: actions,
			peers: v1alpha1Sources(r.From), ports: v1alpha1Ports(at, r.Ports),
		}, p.Tier)...)
	}
	for i, r := range spec.Egress {
		at := ruleAt(policy.Egress, i)
		p.rules[policy.Egress] = append(p.rules[policy.Egress], d.adminRule(adminRuleSpec{
			at: at, action: string(r.Action), actions: actions,
			peers: v1alpha1Destinations(r.To), ports: v1alpha1Ports(at, r.Ports),
		}, p.Tier)...)
	}
}

func v1alpha1Subject(s v1alpha1.AdminNetworkPolicySubject) v1alpha2.ClusterNetworkPolicySubject {
	return v1alpha2.ClusterNetworkPolicySubject{Namespaces: s.Namespaces, Pods: (*v1alpha2.NamespacedPod)(s.Pods)}
}

func v1alpha1Sources(peers []v1alpha1.AdminNetworkPolicyIngressPeer) []v1alpha2.ClusterNetworkPolicyEgressPeer {
	var out []v1alpha2.ClusterNetworkPolicyEgressPeer
	for _, p := range peers {
		out = append(out, v1alpha2.ClusterNetworkPolicyEgressPeer{Namespaces: p.Namespaces, Pods: (*v1alpha2.NamespacedPod)(p.Pods)})
	}
	return out
}

func v1alpha1Destinations(peers []v1alpha1.AdminNetworkPolicyEgressPeer) []v1alpha2.ClusterNetworkPolicyEgressPeer {
	var out []v1alpha2.ClusterNetworkPolicyEgressPeer
	for _, p := range peers {
		out = append(out, v1alpha2.ClusterNetworkPolicyEgressPeer{
			Namespaces:  p.Namespaces,
			Pods:        (*v1alpha2.NamespacedPod)(p.Pods),
			Nodes:       p.Nodes,
			Networks:    convert[v1alpha2.CIDR](p.Networks),
			DomainNames: convert[v1alpha2.DomainName](p.DomainNames),
		})
	}
	return out
}

// v1alpha1Ports compiles the ports of the rule at a path. A missing list and one
// without items, which the CRD of 0.1.5 lets pass, match everything (CN-12).
func v1alpha1Ports(at location, ports *[]v1alpha1.AdminNetworkPolicyPort) func(*adminRule) {
	if ports == nil || len(*ports) == 0 {
		return nil
	}
	return func(r *adminRule) {
		for i := range *ports {
			r.ports = append(r.ports, r.v1alpha1Port(at.ports(v1alpha1PortsField).item(i), &(*ports)[i]))
		}
	}
}

func (r *adminRule) v1alpha1Port(at location, p *v1alpha1.AdminNetworkPolicyPort) policy.Port {
	switch known := count(p.PortNumber != nil, p.PortRange != nil, p.NamedPort != nil); {
	case known != 1:
		return r.losePort(at, policy.InvalidPort, "the port has %d fields that are known, exactly one is needed", known)
	case p.PortNumber != nil:
		at = at.child("portNumber")
		proto, ok := r.portProtocol(at.child("protocol"), p.PortNumber.Protocol)
		if !ok {
			return noPort
		}
		return r.portNumber(at.child("port"), proto, p.PortNumber.Port)
	case p.PortRange != nil:
		at = at.child("portRange")
		proto, ok := r.portProtocol(at.child("protocol"), p.PortRange.Protocol)
		if !ok {
			return noPort
		}
		return r.portRange(at, proto, p.PortRange.Start, p.PortRange.End)
	}
	return r.namedPort(at.child("namedPort"), *p.NamedPort)
}
