// Package proposed has the kinds of the network policy API with the fields that are only proposed
// for them. The released Go types lack these fields, and an agent that dropped them when decoding
// could not say which gate a policy needs. It knows no gates and gives fields no meaning.
package proposed

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"
)

// ClusterNetworkPolicy is the released type with the fields of proposals. Released and proposed
// fields have the same JSON, so it also decodes what has no field of a proposal.
type ClusterNetworkPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   ClusterNetworkPolicySpec           `json:"spec"`
	Status v1beta1.ClusterNetworkPolicyStatus `json:"status,omitempty"`
}

// ClusterNetworkPolicyList is a list of ClusterNetworkPolicies.
type ClusterNetworkPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ClusterNetworkPolicy `json:"items"`
}

// ClusterNetworkPolicySpec is the released type with proposed fields in its rules.
type ClusterNetworkPolicySpec struct {
	Tier     v1beta1.Tier  `json:"tier"`
	Priority int32         `json:"priority"`
	Subject  Subject       `json:"subject"`
	Ingress  []IngressRule `json:"ingress,omitempty"`
	Egress   []EgressRule  `json:"egress,omitempty"`
}

// Subject is the released type with the field of NPEP-173.
type Subject struct {
	v1beta1.ClusterNetworkPolicySubject `json:",inline"`

	// ServiceAccounts selects pods by their service accounts (NPEP-173).
	ServiceAccounts *ServiceAccounts `json:"serviceAccounts,omitempty"`
}

// ServiceAccounts selects the pods whose service account has one of the names, in the namespaces of
// the selector (NPEP-173, which names no fields yet).
type ServiceAccounts struct {
	NamespaceSelector metav1.LabelSelector `json:"namespaceSelector"`
	Names             []string             `json:"names"`
}

// IngressRule is the released type with proposed fields in its peers.
type IngressRule struct {
	Name      string                                 `json:"name,omitempty"`
	Action    v1beta1.ClusterNetworkPolicyRuleAction `json:"action"`
	From      []IngressPeer                          `json:"from"`
	Protocols []v1beta1.ClusterNetworkPolicyProtocol `json:"protocols,omitempty"`
}

// IngressPeer is the released type with the peers of NPEP-127, NPEP-173 and NPEP-182.
type IngressPeer struct {
	v1beta1.ClusterNetworkPolicyIngressPeer `json:",inline"`

	// Nodes selects sources that are nodes (NPEP-127).
	Nodes *metav1.LabelSelector `json:"nodes,omitempty"`
	// Networks selects sources by address (NPEP-127).
	Networks []v1beta1.CIDR `json:"networks,omitempty"`
	// ServiceAccounts selects sources that are pods by their service accounts (NPEP-173).
	ServiceAccounts *ServiceAccounts `json:"serviceAccounts,omitempty"`
	// CIDRGroups selects sources by address, by groups of networks (NPEP-182).
	CIDRGroups *CIDRGroups `json:"cidrGroups,omitempty"`
}

// EgressRule is the released type with proposed fields in its peers.
type EgressRule struct {
	Name      string                                 `json:"name,omitempty"`
	Action    v1beta1.ClusterNetworkPolicyRuleAction `json:"action"`
	To        []EgressPeer                           `json:"to"`
	Protocols []v1beta1.ClusterNetworkPolicyProtocol `json:"protocols,omitempty"`
}

// EgressPeer is the released type with the peers of NPEP-173 and NPEP-182.
type EgressPeer struct {
	v1beta1.ClusterNetworkPolicyEgressPeer `json:",inline"`

	// ServiceAccounts selects destinations that are pods by their service accounts (NPEP-173).
	ServiceAccounts *ServiceAccounts `json:"serviceAccounts,omitempty"`
	// CIDRGroups selects destinations by address, by groups of networks (NPEP-182).
	CIDRGroups *CIDRGroups `json:"cidrGroups,omitempty"`
}

// DeepCopyObject implements runtime.Object.
func (p *ClusterNetworkPolicy) DeepCopyObject() runtime.Object { return p.DeepCopy() }

// DeepCopy returns a copy that shares nothing with p.
func (p *ClusterNetworkPolicy) DeepCopy() *ClusterNetworkPolicy {
	if p == nil {
		return nil
	}
	out := *p
	p.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	p.Status.DeepCopyInto(&out.Status)
	p.Spec.Subject.deepCopyInto(&out.Spec.Subject)
	out.Spec.Ingress = copied(p.Spec.Ingress, (*IngressRule).deepCopyInto)
	out.Spec.Egress = copied(p.Spec.Egress, (*EgressRule).deepCopyInto)
	return &out
}

// DeepCopyObject implements runtime.Object.
func (l *ClusterNetworkPolicyList) DeepCopyObject() runtime.Object {
	if l == nil {
		return nil
	}
	out := *l
	l.ListMeta.DeepCopyInto(&out.ListMeta)
	out.Items = copied(l.Items, func(p, into *ClusterNetworkPolicy) { *into = *p.DeepCopy() })
	return &out
}

func (s *Subject) deepCopyInto(out *Subject) {
	s.ClusterNetworkPolicySubject.DeepCopyInto(&out.ClusterNetworkPolicySubject)
	out.ServiceAccounts = s.ServiceAccounts.deepCopy()
}

func (s *ServiceAccounts) deepCopy() *ServiceAccounts {
	if s == nil {
		return nil
	}
	return &ServiceAccounts{*s.NamespaceSelector.DeepCopy(), slices.Clone(s.Names)}
}

func (r *IngressRule) deepCopyInto(out *IngressRule) {
	*out = *r
	out.From = copied(r.From, (*IngressPeer).deepCopyInto)
	out.Protocols = copied(r.Protocols, (*v1beta1.ClusterNetworkPolicyProtocol).DeepCopyInto)
}

func (p *IngressPeer) deepCopyInto(out *IngressPeer) {
	*out = *p
	p.ClusterNetworkPolicyIngressPeer.DeepCopyInto(&out.ClusterNetworkPolicyIngressPeer)
	out.Nodes = p.Nodes.DeepCopy()
	out.Networks = slices.Clone(p.Networks)
	out.ServiceAccounts = p.ServiceAccounts.deepCopy()
	out.CIDRGroups = p.CIDRGroups.deepCopy()
}

func (r *EgressRule) deepCopyInto(out *EgressRule) {
	*out = *r
	out.To = copied(r.To, (*EgressPeer).deepCopyInto)
	out.Protocols = copied(r.Protocols, (*v1beta1.ClusterNetworkPolicyProtocol).DeepCopyInto)
}

func (p *EgressPeer) deepCopyInto(out *EgressPeer) {
	p.ClusterNetworkPolicyEgressPeer.DeepCopyInto(&out.ClusterNetworkPolicyEgressPeer)
	out.ServiceAccounts = p.ServiceAccounts.deepCopy()
	out.CIDRGroups = p.CIDRGroups.deepCopy()
}

// copied copies the items of a list. It keeps the difference between nil and empty.
func copied[T any](list []T, into func(in, out *T)) []T {
	if list == nil {
		return nil
	}
	out := make([]T, len(list))
	for i := range list {
		into(&list[i], &out[i])
	}
	return out
}
