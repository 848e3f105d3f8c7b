package compile

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

var adminNetworkPolicyActions = []string{actionAllow, actionDeny, actionPass}

// DiagnoseAdminNetworkPolicy returns what of o cannot be honoured, the same
// findings in the same order that Compile has for it. They depend on no other
// object.
func DiagnoseAdminNetworkPolicy(o *v1alpha1.AdminNetworkPolicy, features Features) []policy.Finding {
	return compileAdminNetworkPolicy(o, features).findings
}

func compileAdminNetworkPolicy(o *v1alpha1.AdminNetworkPolicy, features Features) *adminPolicy {
	d := newDiagnosis(KindAdminNetworkPolicy, o, features)
	p := &adminPolicy{ref: d.ref, spec: &o.Spec, tier: policy.AdminTier, priority: o.Spec.Priority}
	d.v1alpha1(p, &o.Spec, adminNetworkPolicyActions)
	return p
}

// v1alpha1 compiles what AdminNetworkPolicy and BaselineAdminNetworkPolicy have
// in common into p.
func (d *diagnosis) v1alpha1(p *adminPolicy, spec *v1alpha1.AdminNetworkPolicySpec, actions []string) {
	p.subject = d.subject(v1alpha1Subject(spec.Subject))
	for i, r := range spec.Ingress {
		at := specPath.Child("ingress").Index(i)
		p.ingress = append(p.ingress, d.adminRule(adminRuleSpec{
			at: at, action: string(r.Action), actions: actions,
			peersAt: at.Child("from"), peers: v1alpha1Sources(r.From), ports: v1alpha1Ports(at, r.Ports),
		}, p.tier, i)...)
	}
	for i, r := range spec.Egress {
		at := specPath.Child("egress").Index(i)
		p.egress = append(p.egress, d.adminRule(adminRuleSpec{
			at: at, action: string(r.Action), actions: actions,
			peersAt: at.Child("to"), peers: v1alpha1Destinations(r.To), ports: v1alpha1Ports(at, r.Ports),
		}, p.tier, i)...)
	}
	p.findings = d.findings
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
func v1alpha1Ports(at *field.Path, ports *[]v1alpha1.AdminNetworkPolicyPort) func(*adminRule) {
	if ports == nil || len(*ports) == 0 {
		return nil
	}
	return func(r *adminRule) {
		for i := range *ports {
			r.ports = append(r.ports, r.v1alpha1Port(at.Child("ports").Index(i), &(*ports)[i]))
		}
	}
}

func (r *adminRule) v1alpha1Port(at *field.Path, p *v1alpha1.AdminNetworkPolicyPort) policy.Port {
	switch known := count(p.PortNumber != nil, p.PortRange != nil, p.NamedPort != nil); {
	case known != 1:
		return r.losePort(at, policy.InvalidPort, "the port has %d fields that are known, exactly one is needed", known)
	case p.PortNumber != nil:
		at = at.Child("portNumber")
		proto, ok := r.portProtocol(at.Child("protocol"), p.PortNumber.Protocol)
		if !ok {
			return noPort
		}
		return r.portNumber(at.Child("port"), proto, p.PortNumber.Port)
	case p.PortRange != nil:
		at = at.Child("portRange")
		proto, ok := r.portProtocol(at.Child("protocol"), p.PortRange.Protocol)
		if !ok {
			return noPort
		}
		return r.portRange(at, proto, p.PortRange.Start, p.PortRange.End)
	}
	return r.namedPort(at.Child("namedPort"), *p.NamedPort)
}
