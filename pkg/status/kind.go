package status

import (
	"errors"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// Kind is a kind of policy that gets conditions.
type Kind struct {
	// Name is the kind, "NetworkPolicy".
	Name string
	// Resource is its resource. While the API server does not serve it, the writer
	// waits for it.
	Resource schema.GroupVersionResource
	// Diagnose returns the parts of o that are not enforced as written. It must not
	// change o.
	Diagnose func(o *unstructured.Unstructured) []policy.Finding
	// Sinks are the ways to store conditions, in order of preference. Without any,
	// no conditions are stored; there are still metrics and Events.
	Sinks []Sink
}

// The resources of the kinds.
var (
	NetworkPolicyResource              = networkingv1.SchemeGroupVersion.WithResource("networkpolicies")
	AdminNetworkPolicyResource         = schema.GroupVersion(v1alpha1.GroupVersion).WithResource("adminnetworkpolicies")
	BaselineAdminNetworkPolicyResource = schema.GroupVersion(v1alpha1.GroupVersion).WithResource("baselineadminnetworkpolicies")
	ClusterNetworkPolicyResource       = schema.GroupVersion(v1alpha2.GroupVersion).WithResource("clusternetworkpolicies")
)

// NetworkPolicies returns the Kind of NetworkPolicies. For this and the other kinds
// diagnose returns the findings of one policy. Fields of the spec that are newer
// than this program, and therefore are not visible to diagnose, become findings too.
func NetworkPolicies(diagnose func(*networkingv1.NetworkPolicy) []policy.Finding, sinks ...Sink) Kind {
	const name = "NetworkPolicy"
	return Kind{name, NetworkPolicyResource, withUnknownFields(name, diagnose), sinks}
}

// AdminNetworkPolicies returns the Kind of AdminNetworkPolicies.
func AdminNetworkPolicies(diagnose func(*v1alpha1.AdminNetworkPolicy) []policy.Finding, sinks ...Sink) Kind {
	const name = "AdminNetworkPolicy"
	return Kind{name, AdminNetworkPolicyResource, withUnknownFields(name, diagnose), sinks}
}

// BaselineAdminNetworkPolicies returns the Kind of BaselineAdminNetworkPolicies.
func BaselineAdminNetworkPolicies(diagnose func(*v1alpha1.BaselineAdminNetworkPolicy) []policy.Finding, sinks ...Sink) Kind {
	const name = "BaselineAdminNetworkPolicy"
	return Kind{name, BaselineAdminNetworkPolicyResource, withUnknownFields(name, diagnose), sinks}
}

// ClusterNetworkPolicies returns the Kind of ClusterNetworkPolicies.
func ClusterNetworkPolicies(diagnose func(*v1alpha2.ClusterNetworkPolicy) []policy.Finding, sinks ...Sink) Kind {
	const name = "ClusterNetworkPolicy"
	return Kind{name, ClusterNetworkPolicyResource, withUnknownFields(name, diagnose), sinks}
}

// Validate returns an error that names every invalid field.
func (k Kind) Validate() error {
	var errs []error
	if k.Name == "" {
		errs = append(errs, errors.New("Name is empty"))
	}
	if k.Resource.Resource == "" {
		errs = append(errs, errors.New("Resource is empty"))
	}
	if k.Diagnose == nil {
		errs = append(errs, errors.New("Diagnose is nil"))
	}
	return errors.Join(errs...)
}
