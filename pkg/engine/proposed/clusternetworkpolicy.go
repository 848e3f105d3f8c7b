// Package proposed has the kinds of the network policy API with the fields that are only proposed
// for them. The released Go types lack these fields, and an agent that dropped them when decoding
// could not say which gate a policy needs. It knows no gates and gives fields no meaning.
package proposed

import (
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

// PeerFields are the fields that proposals add to peers of both directions.
type PeerFields struct {
	// ServiceAccounts selects pods by their service accounts (NPEP-173).
	ServiceAccounts *ServiceAccounts `json:"serviceAccounts,omitempty"`
	// CIDRGroups selects addresses by groups of networks (NPEP-182).
	CIDRGroups *CIDRGroups `json:"cidrGroups,omitempty"`
	// All selects every address (NPEP-248).
	All *All `json:"all,omitempty"`
}

// IngressRule is the released type with proposed fields in its peers.
type IngressRule struct {
	Name      string                                 `json:"name,omitempty"`
	Action    v1beta1.ClusterNetworkPolicyRuleAction `json:"action"`
	From      []IngressPeer                          `json:"from"`
	Protocols []v1beta1.ClusterNetworkPolicyProtocol `json:"protocols,omitempty"`
}

// IngressPeer is the released type with the fields of proposals.
type IngressPeer struct {
	v1beta1.ClusterNetworkPolicyIngressPeer `json:",inline"`
	PeerFields                              `json:",inline"`

	// Nodes selects sources that are nodes (NPEP-127).
	Nodes *metav1.LabelSelector `json:"nodes,omitempty"`
	// Networks selects sources by address (NPEP-127).
	Networks []v1beta1.CIDR `json:"networks,omitempty"`
}

// EgressRule is the released type with proposed fields in its peers.
type EgressRule struct {
	Name      string                                 `json:"name,omitempty"`
	Action    v1beta1.ClusterNetworkPolicyRuleAction `json:"action"`
	To        []EgressPeer                           `json:"to"`
	Protocols []v1beta1.ClusterNetworkPolicyProtocol `json:"protocols,omitempty"`
}

// EgressPeer is the released type with the fields of proposals.
type EgressPeer struct {
	v1beta1.ClusterNetworkPolicyEgressPeer `json:",inline"`
	PeerFields                             `json:",inline"`
}

// DeepCopyObject implements runtime.Object.
func (p *ClusterNetworkPolicy) DeepCopyObject() runtime.Object { return deepCopy(p) }

// DeepCopy returns a copy that shares nothing with p.
func (p *ClusterNetworkPolicy) DeepCopy() *ClusterNetworkPolicy { return deepCopy(p) }

// DeepCopyObject implements runtime.Object.
func (l *ClusterNetworkPolicyList) DeepCopyObject() runtime.Object { return deepCopy(l) }
