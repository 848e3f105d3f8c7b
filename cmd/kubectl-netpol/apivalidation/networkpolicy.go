package apivalidation

import (
	"encoding/json"
	"errors"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metavalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	selectors "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
	strictjson "sigs.k8s.io/json"
)

// The API server's module cannot be imported, so its rules for NetworkPolicy
// (pkg/apis/networking/validation in k8s.io/kubernetes) are repeated here. A test in
// tests/cluster/integration compares both.

func validateNetworkPolicy(o map[string]any) field.ErrorList {
	policy, errs := decodeNetworkPolicy(o)
	if policy == nil {
		return errs
	}
	errs = append(errs, requireName(&policy.ObjectMeta)...)
	if policy.Name != "" {
		errs = append(errs, validateMetadata(&policy.ObjectMeta)...)
	}
	return append(errs, validateSpec(&policy.Spec, field.NewPath("spec"))...)
}

// decodeNetworkPolicy returns the policy, or nil if a value has a wrong type, and errors
// for unknown fields.
func decodeNetworkPolicy(o map[string]any) (*networkingv1.NetworkPolicy, field.ErrorList) {
	data, err := json.Marshal(o)
	if err != nil {
		return nil, field.ErrorList{field.Invalid(nil, nil, err.Error())}
	}
	policy := &networkingv1.NetworkPolicy{}
	strict, err := strictjson.UnmarshalStrict(data, policy)
	if err != nil {
		return nil, field.ErrorList{typeError(err)}
	}
	var errs field.ErrorList
	for _, err := range strict {
		var at strictjson.FieldError
		if errors.As(err, &at) {
			errs = append(errs, unknown(at.FieldPath()))
		}
	}
	return policy, errs
}

// typeError is the error for a value of a wrong type. Its field has no list indices because
// the decoder does not report them.
func typeError(err error) *field.Error {
	var mismatch *json.UnmarshalTypeError
	if !errors.As(err, &mismatch) {
		return &field.Error{Type: field.ErrorTypeTypeInvalid, Detail: err.Error(), BadValue: field.OmitValueType{}}
	}
	return &field.Error{Type: field.ErrorTypeTypeInvalid, Field: mismatch.Field, BadValue: mismatch.Value, Detail: "must be of type " + mismatch.Type.String()}
}

func validateMetadata(m *metav1.ObjectMeta) field.ErrorList {
	if m.Namespace == "" {
		m.Namespace = metav1.NamespaceDefault
	}
	path := field.NewPath("metadata")
	errs := metavalidation.ValidateObjectMeta(m, true, metavalidation.NameIsDNSSubdomain, path)
	for i, name := range m.Finalizers {
		switch name {
		case metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents, string(corev1.FinalizerKubernetes):
			continue
		}
		if !strings.Contains(name, "/") {
			errs = append(errs, field.Invalid(path.Child("finalizers").Index(i), name, "must have a domain, unless it is one of Kubernetes"))
		}
	}
	return errs
}

func validateSpec(spec *networkingv1.NetworkPolicySpec, path *field.Path) field.ErrorList {
	errs := validateSelector(&spec.PodSelector, path.Child("podSelector"))
	for i, rule := range spec.Ingress {
		at := path.Child("ingress").Index(i)
		errs = append(errs, validatePorts(rule.Ports, at.Child("ports"))...)
		errs = append(errs, validatePeers(rule.From, at.Child("from"))...)
	}
	for i, rule := range spec.Egress {
		at := path.Child("egress").Index(i)
		errs = append(errs, validatePorts(rule.Ports, at.Child("ports"))...)
		errs = append(errs, validatePeers(rule.To, at.Child("to"))...)
	}
	return append(errs, validatePolicyTypes(spec.PolicyTypes, path.Child("policyTypes"))...)
}

func validatePolicyTypes(types []networkingv1.PolicyType, path *field.Path) field.ErrorList {
	known := []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
	if len(types) > len(known) {
		return field.ErrorList{field.Invalid(path, types, "must not have more than two items")}
	}
	var errs field.ErrorList
	for i, t := range types {
		if t != known[0] && t != known[1] {
			errs = append(errs, field.NotSupported(path.Index(i), t, known))
		}
	}
	return errs
}

func validatePorts(ports []networkingv1.NetworkPolicyPort, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range ports {
		errs = append(errs, validatePort(&ports[i], path.Index(i))...)
	}
	return errs
}

func validatePort(p *networkingv1.NetworkPolicyPort, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	invalid := func(name string, value any, problems ...string) {
		for _, problem := range problems {
			errs = append(errs, field.Invalid(path.Child(name), value, problem))
		}
	}
	protocols := []corev1.Protocol{corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP}
	if p.Protocol != nil && *p.Protocol != protocols[0] && *p.Protocol != protocols[1] && *p.Protocol != protocols[2] {
		errs = append(errs, field.NotSupported(path.Child("protocol"), *p.Protocol, protocols))
	}
	switch {
	case p.Port == nil:
		if p.EndPort != nil {
			invalid("endPort", *p.EndPort, "must not be set without port")
		}
	case p.Port.Type == intstr.String:
		invalid("port", p.Port.StrVal, validation.IsValidPortName(p.Port.StrVal)...)
		if p.EndPort != nil {
			invalid("endPort", *p.EndPort, "must not be set with a port that is a name")
		}
	default:
		invalid("port", p.Port.IntVal, validation.IsValidPortNum(int(p.Port.IntVal))...)
		if p.EndPort == nil {
			break
		}
		if *p.EndPort < p.Port.IntVal {
			invalid("endPort", *p.EndPort, "must not be less than port")
		}
		invalid("endPort", *p.EndPort, validation.IsValidPortNum(int(*p.EndPort))...)
	}
	return errs
}

func validatePeers(peers []networkingv1.NetworkPolicyPeer, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range peers {
		errs = append(errs, validatePeer(&peers[i], path.Index(i))...)
	}
	return errs
}

func validatePeer(p *networkingv1.NetworkPolicyPeer, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if p.PodSelector != nil {
		errs = append(errs, validateSelector(p.PodSelector, path.Child("podSelector"))...)
	}
	if p.NamespaceSelector != nil {
		errs = append(errs, validateSelector(p.NamespaceSelector, path.Child("namespaceSelector"))...)
	}
	if p.IPBlock != nil {
		errs = append(errs, validateBlock(p.IPBlock, path.Child("ipBlock"))...)
	}
	switch selects := p.PodSelector != nil || p.NamespaceSelector != nil; {
	case !selects && p.IPBlock == nil:
		errs = append(errs, field.Required(path, "one of podSelector, namespaceSelector and ipBlock"))
	case selects && p.IPBlock != nil:
		errs = append(errs, field.Forbidden(path, "ipBlock must be the only field"))
	}
	return errs
}

// validateBlock accepts what any server version accepts. Since Kubernetes 1.36 servers
// refuse addresses such as 010.0.0.1, ::ffff:10.0.0.1 or 10.0.0.1/8 in new policies but
// keep them in existing ones.
func validateBlock(b *networkingv1.IPBlock, path *field.Path) field.ErrorList {
	if b.CIDR == "" {
		return field.ErrorList{field.Required(path.Child("cidr"), "")}
	}
	errs := validation.IsValidCIDRForLegacyField(path.Child("cidr"), b.CIDR, false, nil)
	_, whole, err := netutils.ParseCIDRSloppy(b.CIDR)
	if err != nil {
		return errs
	}
	for i, except := range b.Except {
		at := path.Child("except").Index(i)
		errs = append(errs, validation.IsValidCIDRForLegacyField(at, except, false, nil)...)
		_, part, err := netutils.ParseCIDRSloppy(except)
		if err != nil {
			continue
		}
		wholeBits, _ := whole.Mask.Size()
		partBits, _ := part.Mask.Size()
		if !whole.Contains(part.IP) || partBits <= wholeBits {
			errs = append(errs, field.Invalid(at, except, "must be a part of cidr, and not all of it"))
		}
	}
	return errs
}

func validateSelector(s *metav1.LabelSelector, path *field.Path) field.ErrorList {
	return selectors.ValidateLabelSelector(s, selectors.LabelSelectorValidationOptions{}, path)
}
