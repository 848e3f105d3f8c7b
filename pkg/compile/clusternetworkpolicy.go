package compile

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

const clusterPortsField = "protocols"

var clusterNetworkPolicyActions = []string{actionAccept, actionDeny, actionPass}

// KindClusterNetworkPolicy is version v1alpha2.
var KindClusterNetworkPolicy = adminKind(Kind{
	Name:           "ClusterNetworkPolicy",
	Resource:       schema.GroupVersion(v1alpha2.GroupVersion).WithResource("clusternetworkpolicies"),
	Flag:           "cluster-network-policy",
	HasStatus:      true,
	HasDomainNames: true,
	Tiers:          []policy.Tier{policy.AdminTier, policy.BaselineTier},
	PortsField:     clusterPortsField,
	Docs:           "docs/semantics.md#administrators-policies",
}, func(m metav1.ObjectMeta, o *v1alpha2.ClusterNetworkPolicy) *v1alpha2.ClusterNetworkPolicy {
	return &v1alpha2.ClusterNetworkPolicy{ObjectMeta: m, Spec: o.Spec}
}, clusterSpec, compileClusterNetworkPolicy)

func compileClusterNetworkPolicy(d *diagnosis, o *v1alpha2.ClusterNetworkPolicy) (p *Policy, valid bool) {
	p = &Policy{spec: &o.Spec, priority: o.Spec.Priority}
	switch o.Spec.Tier {
	case v1alpha2.AdminTier:
		p.Tier = policy.AdminTier
	case v1alpha2.BaselineTier:
		p.Tier = policy.BaselineTier
	default:
		d.find(specPath.child("tier"), policy.FeatureNotSupported, "tier %q is none of Admin, Baseline; the policy is ignored", o.Spec.Tier)
		d.nothingLeft()
		return p, false
	}
	return p, true
}

func clusterSpec(o *v1alpha2.ClusterNetworkPolicy) *AdminSpec {
	s := &AdminSpec{Subject: o.Spec.Subject, actions: clusterNetworkPolicyActions}
	for _, r := range o.Spec.Ingress {
		s.Rules[policy.Ingress] = append(s.Rules[policy.Ingress], AdminRule{clusterSources(r.From), string(r.Action), clusterPorts(r.Protocols)})
	}
	for _, r := range o.Spec.Egress {
		s.Rules[policy.Egress] = append(s.Rules[policy.Egress], AdminRule{r.To, string(r.Action), clusterPorts(r.Protocols)})
	}
	return s
}

func clusterSources(peers []v1alpha2.ClusterNetworkPolicyIngressPeer) []v1alpha2.ClusterNetworkPolicyEgressPeer {
	var out []v1alpha2.ClusterNetworkPolicyEgressPeer
	for _, p := range peers {
		out = append(out, v1alpha2.ClusterNetworkPolicyEgressPeer{Namespaces: p.Namespaces, Pods: p.Pods})
	}
	return out
}

// clusterPorts returns the AdminRule.ports of a rule (CN-12).
func clusterPorts(protocols []v1alpha2.ClusterNetworkPolicyProtocol) func(*adminRule, location) {
	if len(protocols) == 0 {
		return nil
	}
	return func(r *adminRule, at location) {
		for i := range protocols {
			r.ports = append(r.ports, r.clusterProtocol(at.ports(clusterPortsField).item(i), &protocols[i]))
		}
	}
}

func (r *adminRule) clusterProtocol(at location, p *v1alpha2.ClusterNetworkPolicyProtocol) policy.Port {
	switch known := count(p.TCP != nil, p.UDP != nil, p.SCTP != nil, p.DestinationNamedPort != ""); {
	case known != 1:
		return r.losePort(at, policy.InvalidPort, "the protocol has %d fields that are known, exactly one is needed", known)
	case p.TCP != nil:
		return r.destinationPort(at.child("tcp"), corev1.ProtocolTCP, p.TCP.DestinationPort)
	case p.UDP != nil:
		return r.destinationPort(at.child("udp"), corev1.ProtocolUDP, p.UDP.DestinationPort)
	case p.SCTP != nil:
		return r.destinationPort(at.child("sctp"), corev1.ProtocolSCTP, p.SCTP.DestinationPort)
	}
	return r.namedPort(at.child("destinationNamedPort"), p.DestinationNamedPort)
}

// destinationPort compiles what a protocol is restricted to. The schema asks for
// some restriction; where there is none that is known, there was one that is
// not, and to match every port would be more than was said.
func (r *adminRule) destinationPort(at location, api corev1.Protocol, p *v1alpha2.Port) policy.Port {
	proto, ok := r.portProtocol(at, api)
	if !ok {
		return noPort
	}
	if p == nil {
		return r.losePort(at, policy.InvalidPort, "there is no destinationPort, nor another field that is known")
	}
	at = at.child("destinationPort")
	switch known := count(p.Number != 0, p.Range != nil); {
	case known != 1:
		return r.losePort(at, policy.InvalidPort, "the port has %d fields that are known, exactly one is needed", known)
	case p.Range != nil:
		return r.portRange(at.child("range"), proto, p.Range.Start, p.Range.End)
	}
	return r.portNumber(at.child("number"), proto, p.Number)
}
