package compile

import (
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// What the kinds of policy.networking.k8s.io/v1alpha1 have in common.

const v1alpha1PortsField = "ports"

// v1alpha1Spec converts a spec of v1alpha1. Its kind has these actions.
func v1alpha1Spec(spec *v1alpha1.AdminNetworkPolicySpec, actions []string) *AdminSpec {
	s := &AdminSpec{Subject: v1alpha1Subject(spec.Subject), actions: actions}
	for _, r := range spec.Ingress {
		s.Rules[policy.Ingress] = append(s.Rules[policy.Ingress], AdminRule{v1alpha1Sources(r.From), string(r.Action), v1alpha1Ports(r.Ports)})
	}
	for _, r := range spec.Egress {
		s.Rules[policy.Egress] = append(s.Rules[policy.Egress], AdminRule{v1alpha1Destinations(r.To), string(r.Action), v1alpha1Ports(r.Ports)})
	}
	return s
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

// v1alpha1Ports returns the AdminRule.ports of a rule. A missing list and one without
// items, which the CRD of 0.1.5 lets pass, match everything (CN-12).
func v1alpha1Ports(ports *[]v1alpha1.AdminNetworkPolicyPort) func(*adminRule, location) {
	if ports == nil || len(*ports) == 0 {
		return nil
	}
	return func(r *adminRule, at location) {
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
