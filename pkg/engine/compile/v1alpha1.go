package compile

import (
	"math"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

// The kinds of policy.networking.k8s.io/v1alpha1 become the AdminSpec that ClusterNetworkPolicy
// compiles to, in this file alone.

const v1alpha1PortsField = "ports"

var adminNetworkPolicyActions = []string{actionAllow, actionDeny, actionPass}

// KindAdminNetworkPolicy is version v1alpha1.
var KindAdminNetworkPolicy = adminKind(Kind{
	Name:           "AdminNetworkPolicy",
	Resource:       schema.GroupVersion(v1alpha1.GroupVersion).WithResource("adminnetworkpolicies"),
	HasStatus:      true,
	HasDomainNames: true,
	Tiers:          []policy.Tier{policy.AdminTier},
	PortsField:     v1alpha1PortsField,
	Install:        v1alpha1.Install,
	Docs:           "docs/semantics.md#administrators-policies",
}, func(m metav1.ObjectMeta, o *v1alpha1.AdminNetworkPolicy) *v1alpha1.AdminNetworkPolicy {
	return &v1alpha1.AdminNetworkPolicy{ObjectMeta: m, Spec: o.Spec}
}, func(o *v1alpha1.AdminNetworkPolicy) *AdminSpec {
	return v1alpha1Spec(&o.Spec, adminNetworkPolicyActions)
}, compileAdminNetworkPolicy)

func compileAdminNetworkPolicy(_ *diagnosis, o *v1alpha1.AdminNetworkPolicy) (p *Policy, valid bool) {
	return &Policy{spec: &o.Spec, Tier: policy.AdminTier, priority: o.Spec.Priority}, true
}

// lastPriority orders the policy, which has no priority, after every other policy of its tier
// (CN-8).
const lastPriority = math.MaxInt32

// baselineName is the only valid name of a BaselineAdminNetworkPolicy (CN-32).
const baselineName = "default"

var baselineAdminNetworkPolicyActions = []string{actionAllow, actionDeny}

// KindBaselineAdminNetworkPolicy is version v1alpha1.
var KindBaselineAdminNetworkPolicy = adminKind(Kind{
	Name:       "BaselineAdminNetworkPolicy",
	Resource:   schema.GroupVersion(v1alpha1.GroupVersion).WithResource("baselineadminnetworkpolicies"),
	HasStatus:  true,
	Tiers:      []policy.Tier{policy.BaselineTier},
	PortsField: v1alpha1PortsField,
	Install:    v1alpha1.Install,
	Docs:       "docs/semantics.md#administrators-policies",
}, func(m metav1.ObjectMeta, o *v1alpha1.BaselineAdminNetworkPolicy) *v1alpha1.BaselineAdminNetworkPolicy {
	return &v1alpha1.BaselineAdminNetworkPolicy{ObjectMeta: m, Spec: o.Spec}
}, func(o *v1alpha1.BaselineAdminNetworkPolicy) *AdminSpec {
	return v1alpha1Spec(baselineSpec(&o.Spec), baselineAdminNetworkPolicyActions)
}, compileBaselineAdminNetworkPolicy)

func compileBaselineAdminNetworkPolicy(d *diagnosis, o *v1alpha1.BaselineAdminNetworkPolicy) (p *Policy, valid bool) {
	p = &Policy{spec: &o.Spec, Tier: policy.BaselineTier, priority: lastPriority}
	if o.Name != baselineName {
		d.find(metadataName, policy.FeatureNotSupported, "%q is not %q; the policy is ignored", o.Name, baselineName)
		d.nothingLeft()
		return p, false
	}
	return p, true
}

// baselineSpec converts s into the larger spec of v1alpha1, which has all of its fields.
func baselineSpec(s *v1alpha1.BaselineAdminNetworkPolicySpec) *v1alpha1.AdminNetworkPolicySpec {
	spec := &v1alpha1.AdminNetworkPolicySpec{Subject: s.Subject}
	for _, r := range s.Ingress {
		spec.Ingress = append(spec.Ingress, v1alpha1.AdminNetworkPolicyIngressRule{
			Action: v1alpha1.AdminNetworkPolicyRuleAction(r.Action), From: r.From, Ports: r.Ports,
		})
	}
	for _, r := range s.Egress {
		rule := v1alpha1.AdminNetworkPolicyEgressRule{Action: v1alpha1.AdminNetworkPolicyRuleAction(r.Action), Ports: r.Ports}
		for _, p := range r.To {
			rule.To = append(rule.To, v1alpha1.AdminNetworkPolicyEgressPeer{Namespaces: p.Namespaces, Pods: p.Pods, Nodes: p.Nodes, Networks: p.Networks})
		}
		spec.Egress = append(spec.Egress, rule)
	}
	return spec
}

// v1alpha1Spec converts a spec of v1alpha1. actions are those of its kind.
func v1alpha1Spec(spec *v1alpha1.AdminNetworkPolicySpec, actions []string) *AdminSpec {
	s := &AdminSpec{actions: actions}
	s.Subject.Namespaces, s.Subject.Pods = spec.Subject.Namespaces, (*v1beta1.NamespacedPod)(spec.Subject.Pods)
	for _, r := range spec.Ingress {
		s.Rules[policy.Ingress] = append(s.Rules[policy.Ingress], AdminRule{v1alpha1Sources(r.From), r.Name, string(r.Action), v1alpha1Ports(r.Ports)})
	}
	for _, r := range spec.Egress {
		s.Rules[policy.Egress] = append(s.Rules[policy.Egress], AdminRule{v1alpha1Destinations(r.To), r.Name, string(r.Action), v1alpha1Ports(r.Ports)})
	}
	return s
}

func v1alpha1Sources(peers []v1alpha1.AdminNetworkPolicyIngressPeer) []proposed.EgressPeer {
	var out []proposed.EgressPeer
	for _, p := range peers {
		out = append(out, proposed.EgressPeer{ClusterNetworkPolicyEgressPeer: v1beta1.ClusterNetworkPolicyEgressPeer{Namespaces: p.Namespaces, Pods: (*v1beta1.NamespacedPod)(p.Pods)}})
	}
	return out
}

func v1alpha1Destinations(peers []v1alpha1.AdminNetworkPolicyEgressPeer) []proposed.EgressPeer {
	var out []proposed.EgressPeer
	for _, p := range peers {
		out = append(out, proposed.EgressPeer{ClusterNetworkPolicyEgressPeer: v1beta1.ClusterNetworkPolicyEgressPeer{
			Namespaces:  p.Namespaces,
			Pods:        (*v1beta1.NamespacedPod)(p.Pods),
			Nodes:       p.Nodes,
			Networks:    convert[v1beta1.CIDR](p.Networks),
			DomainNames: convert[v1beta1.DomainName](p.DomainNames),
		}})
	}
	return out
}

// v1alpha1Ports returns the AdminRule.ports of a rule. A missing list matches everything, and so
// does an empty one, which the CRD of 0.1.5 accepts (CN-12).
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
