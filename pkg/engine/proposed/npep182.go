package proposed

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"
)

// CIDRGroup is a named set of networks (NPEP-182).
type CIDRGroup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec CIDRGroupSpec `json:"spec"`
}

// CIDRGroupSpec has the networks of a group. A group may have none.
type CIDRGroupSpec struct {
	CIDRs []v1beta1.CIDR `json:"cidrs,omitempty"`
}

// CIDRGroupList is a list of CIDRGroups.
type CIDRGroupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []CIDRGroup `json:"items"`
}

// CIDRGroupVersion is the version of the API that NPEP-182 proposes CIDRGroup for.
var CIDRGroupVersion = schema.GroupVersion(v1alpha1.GroupVersion)

// InstallCIDRGroup adds the types of CIDRGroup to a scheme.
func InstallCIDRGroup(types *runtime.Scheme) error {
	types.AddKnownTypes(CIDRGroupVersion, new(CIDRGroup), new(CIDRGroupList))
	metav1.AddToGroupVersion(types, CIDRGroupVersion)
	return nil
}

// CIDRGroups selects networks by the groups that they are in (NPEP-182). Exactly one field is set.
// The proposal makes it a part of networks, whose type that would change.
type CIDRGroups struct {
	// Names are the names of groups.
	Names []string `json:"names,omitempty"`
	// Selector selects groups by their labels.
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

// DeepCopyObject implements runtime.Object.
func (g *CIDRGroup) DeepCopyObject() runtime.Object { return deepCopy(g) }

// DeepCopy returns a copy that shares nothing with g.
func (g *CIDRGroup) DeepCopy() *CIDRGroup { return deepCopy(g) }

// DeepCopyObject implements runtime.Object.
func (l *CIDRGroupList) DeepCopyObject() runtime.Object { return deepCopy(l) }
