package compile

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

const clusterPortsField = "protocols"

var clusterNetworkPolicyActions = []string{actionAccept, actionDeny, actionPass}

// KindClusterNetworkPolicy is version v1beta1, or v1alpha2 on servers without v1beta1.
var KindClusterNetworkPolicy = adminKind(Kind{
	Name:           "ClusterNetworkPolicy",
	Resource:       schema.GroupVersion(v1beta1.GroupVersion).WithResource("clusternetworkpolicies"),
	Older:          []string{"v1alpha2"},
	HasStatus:      true,
	HasDomainNames: true,
	Tiers:          []policy.Tier{policy.AdminTier, policy.BaselineTier},
	PortsField:     clusterPortsField,
	HasProposals:   true,
	Install:        installCluster,
	Docs:           "docs/semantics.md#administrators-policies",
}, func(m metav1.ObjectMeta, o *proposed.ClusterNetworkPolicy) *proposed.ClusterNetworkPolicy {
	return &proposed.ClusterNetworkPolicy{ObjectMeta: m, Spec: o.Spec}
}, clusterSpec, compileClusterNetworkPolicy)

func installCluster(types *runtime.Scheme) error {
	version := schema.GroupVersion(v1beta1.GroupVersion)
	types.AddKnownTypes(version, new(proposed.ClusterNetworkPolicy), new(proposed.ClusterNetworkPolicyList))
	metav1.AddToGroupVersion(types, version)
	return nil
}

func compileClusterNetworkPolicy(d *diagnosis, o *proposed.ClusterNetworkPolicy) (p *Policy, valid bool) {
	p = &Policy{spec: &o.Spec, priority: o.Spec.Priority}
	switch o.Spec.Tier {
	case v1beta1.AdminTier:
		p.Tier = policy.AdminTier
	case v1beta1.BaselineTier:
		p.Tier = policy.BaselineTier
	default:
		d.find(specPath.child("tier"), policy.FeatureNotSupported, "tier %q is none of Admin, Baseline; the policy is ignored", o.Spec.Tier)
		d.nothingLeft()
		return p, false
	}
	d.refused(clusterSpec(o), p.Tier)
	return p, true
}

// refused adds findings about values that servers refuse since v0.3.0 of the API but may have
// stored before, or that a proposal wants them to refuse. If readable, they are enforced (CN-38).
func (d *diagnosis) refused(s *AdminSpec, tier policy.Tier) {
	for direction, rules := range s.Rules {
		for i, rule := range rules {
			for j := range rule.Peers {
				at := ruleAt(policy.Direction(direction), i).peers().item(j)
				for k, cidr := range rule.Peers[j].Networks {
					written, err := netip.ParsePrefix(string(cidr))
					if read, unread := parsePrefix(string(cidr)); unread == nil && (err != nil || written != read) {
						d.find(at.child("networks").index(k), policy.InvalidCIDR, "%s", withName(rule.name, "%q is refused since v0.3.0 of the API; %s is matched", cidr, read))
					}
				}
				d.refusedDomains(at.child("domainNames"), &rule, rule.Peers[j].DomainNames, tier)
			}
		}
	}
}

func clusterSpec(o *proposed.ClusterNetworkPolicy) *AdminSpec {
	s := &AdminSpec{Subject: o.Spec.Subject, actions: clusterNetworkPolicyActions}
	for _, r := range o.Spec.Ingress {
		var from []proposed.EgressPeer
		for _, p := range r.From {
			released := v1beta1.ClusterNetworkPolicyEgressPeer{Namespaces: p.Namespaces, Pods: p.Pods, Nodes: p.Nodes, Networks: p.Networks}
			from = append(from, proposed.EgressPeer{ClusterNetworkPolicyEgressPeer: released, PeerFields: p.PeerFields})
		}
		s.Rules[policy.Ingress] = append(s.Rules[policy.Ingress], AdminRule{from, r.Name, string(r.Action), clusterPorts(r.Protocols)})
	}
	for _, r := range o.Spec.Egress {
		s.Rules[policy.Egress] = append(s.Rules[policy.Egress], AdminRule{r.To, r.Name, string(r.Action), clusterPorts(r.Protocols)})
	}
	return s
}

// clusterPorts returns the AdminRule.ports of a rule (CN-12).
func clusterPorts(protocols []v1beta1.ClusterNetworkPolicyProtocol) func(*adminRule, location) {
	if len(protocols) == 0 {
		return nil
	}
	return func(r *adminRule, at location) {
		for i := range protocols {
			r.ports = append(r.ports, r.clusterProtocol(at.ports(clusterPortsField).item(i), &protocols[i]))
		}
	}
}

func (r *adminRule) clusterProtocol(at location, p *v1beta1.ClusterNetworkPolicyProtocol) policy.Port {
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

// destinationPort compiles the restriction of a protocol. The schema requires one. If no known one
// is set, the object has one that is unknown here, and matching every port would match more than
// its author wrote.
func (r *adminRule) destinationPort(at location, api corev1.Protocol, p *v1beta1.Port) policy.Port {
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
