package oracle

import (
	"fmt"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Reason is a kind of fault of a policy, with the same value as the reason of the condition.
type Reason string

// The reasons, as in the table of the status section.
const (
	FeatureNotSupported Reason = "FeatureNotSupported"
	UnsupportedProtocol Reason = "UnsupportedProtocol"
	InvalidPort         Reason = "InvalidPort"
	InvalidCIDR         Reason = "InvalidCIDR"
	InvalidSelector     Reason = "InvalidSelector"
	InvalidPeer         Reason = "InvalidPeer"
	UnknownCIDRGroup    Reason = "UnknownCIDRGroup"
)

// Fault is a part of a policy that cannot be enforced as written.
type Fault struct {
	// Field is the path of the faulty item, such as spec.ingress[0].ports[1].
	// A fault of a field inside the item is reported with the item's path.
	Field  string
	Reason Reason
	// Void reports that nothing depends on the item: the policy's types or its unreadable
	// podSelector disable its rule.
	Void bool
}

// Faults returns the parts of a policy that cannot be honoured. One item may have several faults.
func Faults(c Cluster, policy *networkingv1.NetworkPolicy) []Fault {
	var faults []Fault
	subject := selectorIsValid(policy.Spec.PodSelector)
	if !subject {
		faults = append(faults, Fault{Field: "spec.podSelector", Reason: InvalidSelector})
	}
	for i, t := range policy.Spec.PolicyTypes {
		if t != networkingv1.PolicyTypeIngress && t != networkingv1.PolicyTypeEgress { // NP-5
			faults = append(faults, Fault{Field: fmt.Sprintf("spec.policyTypes[%d]", i), Reason: FeatureNotSupported})
		}
	}
	for _, side := range []struct {
		dir         networkingv1.PolicyType
		rules, peer string
	}{
		{networkingv1.PolicyTypeIngress, "ingress", "from"},
		{networkingv1.PolicyTypeEgress, "egress", "to"},
	} {
		void := !subject || !hasType(policy, side.dir)
		for i, r := range rulesOf(policy, side.dir) {
			path := fmt.Sprintf("spec.%s[%d]", side.rules, i)
			for j, peer := range r.peers {
				faults = appendFaults(faults, fmt.Sprintf("%s.%s[%d]", path, side.peer, j), void, peerFaults(peer))
			}
			for j, port := range r.ports {
				faults = appendFaults(faults, fmt.Sprintf("%s.ports[%d]", path, j), void, c.portFaults(port))
			}
		}
	}
	return faults
}

func appendFaults(faults []Fault, field string, void bool, reasons []Reason) []Fault {
	for _, reason := range reasons {
		faults = append(faults, Fault{Field: field, Reason: reason, Void: void})
	}
	return faults
}

// portFaults: NP-26 and the table of the status section. A port with a fault matches nothing.
func (c Cluster) portFaults(port networkingv1.NetworkPolicyPort) []Reason {
	var faults []Reason
	if _, known := protocols[protocolOf(port)]; !known {
		faults = append(faults, UnsupportedProtocol)
	}
	if protocolOf(port) == "SCTP" && !c.SCTP {
		faults = append(faults, FeatureNotSupported)
	}
	if port.EndPort != nil && !c.EndPort {
		faults = append(faults, FeatureNotSupported)
	}
	if !portIsValid(port) {
		faults = append(faults, InvalidPort)
	}
	return faults
}

// portIsValid: NP-26. A number is 1 to 65535; endPort needs a number and is not below it. A name
// that no pod declares is not a fault (NP-29), but an invalid name is.
func portIsValid(port networkingv1.NetworkPolicyPort) bool {
	switch {
	case port.Port == nil:
		return port.EndPort == nil
	case port.Port.Type == intstr.String:
		return port.EndPort == nil && len(validation.IsValidPortName(port.Port.StrVal)) == 0
	case port.EndPort == nil:
		return inPortRange(port.Port.IntVal)
	}
	return inPortRange(port.Port.IntVal) && inPortRange(*port.EndPort) && port.Port.IntVal <= *port.EndPort
}

func inPortRange(number int32) bool { return 1 <= number && number <= 65535 }

// peerFaults: NP-11, NP-16, NP-18, NP-24.
func peerFaults(peer networkingv1.NetworkPolicyPeer) []Reason {
	var faults []Reason
	hasSelector := peer.PodSelector != nil || peer.NamespaceSelector != nil
	if hasSelector == (peer.IPBlock != nil) {
		faults = append(faults, InvalidPeer)
	}
	for _, s := range []*metav1.LabelSelector{peer.PodSelector, peer.NamespaceSelector} {
		if s != nil && !selectorIsValid(*s) {
			faults = append(faults, InvalidSelector)
		}
	}
	if peer.IPBlock != nil && !ipBlockIsValid(peer.IPBlock) {
		faults = append(faults, InvalidCIDR)
	}
	return faults
}

// ipBlockIsValid: NP-18, an exception is a strict subset of the block. NP-19: host bits, leading
// zeros and mapped addresses are not faults.
func ipBlockIsValid(block *networkingv1.IPBlock) bool {
	cidr, ok := parseCIDR(block.CIDR)
	if !ok {
		return false
	}
	for _, text := range block.Except {
		except, ok := parseCIDR(text)
		if !ok || !cidr.Contains(except.Addr()) || except.Bits() <= cidr.Bits() {
			return false
		}
	}
	return true
}
