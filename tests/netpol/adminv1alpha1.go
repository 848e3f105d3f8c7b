package netpol

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"
)

// NewAdminNetworkPolicy returns a policy with the same parts as NewClusterNetworkPolicy.
func NewAdminNetworkPolicy(name string, priority int32, parts ...AdminPart) *v1alpha1.AdminNetworkPolicy {
	spec := newAdminSpec(parts)
	policy := &v1alpha1.AdminNetworkPolicy{
		TypeMeta:   typeMeta(v1alpha1.GroupVersion.String(), "AdminNetworkPolicy"),
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.AdminNetworkPolicySpec{Priority: priority, Subject: subjectV1alpha1(spec.Subject)},
	}
	for _, r := range spec.Ingress {
		policy.Spec.Ingress = append(policy.Spec.Ingress, v1alpha1.AdminNetworkPolicyIngressRule{
			Action: v1alpha1.AdminNetworkPolicyRuleAction(actionV1alpha1(r.Action)), From: sourcesV1alpha1(r.From), Ports: portsV1alpha1(r.Protocols),
		})
	}
	for _, r := range spec.Egress {
		rule := v1alpha1.AdminNetworkPolicyEgressRule{Action: v1alpha1.AdminNetworkPolicyRuleAction(actionV1alpha1(r.Action)), Ports: portsV1alpha1(r.Protocols)}
		for _, p := range r.To {
			rule.To = append(rule.To, v1alpha1.AdminNetworkPolicyEgressPeer{
				Namespaces: p.Namespaces, Pods: (*v1alpha1.NamespacedPod)(p.Pods), Nodes: p.Nodes,
				Networks: stringsAs[v1alpha1.CIDR](p.Networks), DomainNames: stringsAs[v1alpha1.DomainName](p.DomainNames),
			})
		}
		policy.Spec.Egress = append(policy.Spec.Egress, rule)
	}
	return policy
}

// NewBaselineAdminNetworkPolicy returns the only policy of its kind, which is named
// default. It panics for parts that the kind does not have: the action Pass and domain
// names.
func NewBaselineAdminNetworkPolicy(parts ...AdminPart) *v1alpha1.BaselineAdminNetworkPolicy {
	spec := newAdminSpec(parts)
	policy := &v1alpha1.BaselineAdminNetworkPolicy{
		TypeMeta:   typeMeta(v1alpha1.GroupVersion.String(), "BaselineAdminNetworkPolicy"),
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Spec:       v1alpha1.BaselineAdminNetworkPolicySpec{Subject: subjectV1alpha1(spec.Subject)},
	}
	for _, r := range spec.Ingress {
		policy.Spec.Ingress = append(policy.Spec.Ingress, v1alpha1.BaselineAdminNetworkPolicyIngressRule{
			Action: baselineAction(r.Action), From: sourcesV1alpha1(r.From), Ports: portsV1alpha1(r.Protocols),
		})
	}
	for _, r := range spec.Egress {
		rule := v1alpha1.BaselineAdminNetworkPolicyEgressRule{Action: baselineAction(r.Action), Ports: portsV1alpha1(r.Protocols)}
		for _, p := range r.To {
			if len(p.DomainNames) > 0 {
				panic("netpol: a BaselineAdminNetworkPolicy has no domain names")
			}
			rule.To = append(rule.To, v1alpha1.BaselineAdminNetworkPolicyEgressPeer{
				Namespaces: p.Namespaces, Pods: (*v1alpha1.NamespacedPod)(p.Pods), Nodes: p.Nodes, Networks: stringsAs[v1alpha1.CIDR](p.Networks),
			})
		}
		policy.Spec.Egress = append(policy.Spec.Egress, rule)
	}
	return policy
}

func actionV1alpha1(action v1beta1.ClusterNetworkPolicyRuleAction) string {
	if action == v1beta1.ClusterNetworkPolicyRuleActionAccept {
		return string(v1alpha1.AdminNetworkPolicyRuleActionAllow)
	}
	return string(action)
}

func baselineAction(action v1beta1.ClusterNetworkPolicyRuleAction) v1alpha1.BaselineAdminNetworkPolicyRuleAction {
	if action == v1beta1.ClusterNetworkPolicyRuleActionPass {
		panic("netpol: a BaselineAdminNetworkPolicy cannot pass")
	}
	return v1alpha1.BaselineAdminNetworkPolicyRuleAction(actionV1alpha1(action))
}

func subjectV1alpha1(s v1beta1.ClusterNetworkPolicySubject) v1alpha1.AdminNetworkPolicySubject {
	return v1alpha1.AdminNetworkPolicySubject{Namespaces: s.Namespaces, Pods: (*v1alpha1.NamespacedPod)(s.Pods)}
}

func sourcesV1alpha1(peers []v1beta1.ClusterNetworkPolicyIngressPeer) []v1alpha1.AdminNetworkPolicyIngressPeer {
	var sources []v1alpha1.AdminNetworkPolicyIngressPeer
	for _, p := range peers {
		sources = append(sources, v1alpha1.AdminNetworkPolicyIngressPeer{Namespaces: p.Namespaces, Pods: (*v1alpha1.NamespacedPod)(p.Pods)})
	}
	return sources
}

func portsV1alpha1(protocols []v1beta1.ClusterNetworkPolicyProtocol) *[]v1alpha1.AdminNetworkPolicyPort {
	if protocols == nil {
		return nil
	}
	var ports []v1alpha1.AdminNetworkPolicyPort
	for _, p := range protocols {
		switch {
		case p.TCP != nil:
			ports = append(ports, portV1alpha1(corev1.ProtocolTCP, p.TCP.DestinationPort))
		case p.UDP != nil:
			ports = append(ports, portV1alpha1(corev1.ProtocolUDP, p.UDP.DestinationPort))
		case p.SCTP != nil:
			ports = append(ports, portV1alpha1(corev1.ProtocolSCTP, p.SCTP.DestinationPort))
		default:
			ports = append(ports, v1alpha1.AdminNetworkPolicyPort{NamedPort: &p.DestinationNamedPort})
		}
	}
	return &ports
}

func portV1alpha1(protocol corev1.Protocol, p *v1beta1.Port) v1alpha1.AdminNetworkPolicyPort {
	if p.Range != nil {
		return v1alpha1.AdminNetworkPolicyPort{PortRange: &v1alpha1.PortRange{Protocol: protocol, Start: p.Range.Start, End: p.Range.End}}
	}
	return v1alpha1.AdminNetworkPolicyPort{PortNumber: &v1alpha1.Port{Protocol: protocol, Port: p.Number}}
}

func stringsAs[T, S ~string](texts []S) []T {
	var all []T
	for _, text := range texts {
		all = append(all, T(text))
	}
	return all
}
