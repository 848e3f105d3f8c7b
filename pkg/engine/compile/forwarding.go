package compile

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/base/printable"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// ForwardedSourcesAnnotation on a namespace lists the sources of packets that its pods may forward,
// as prefixes separated by commas (FW-1).
const ForwardedSourcesAnnotation = AnnotationDomain + "forwarded-sources"

// MaxForwardedSources is the most prefixes in one annotation.
const MaxForwardedSources = 64

var forwardedSourcesField = annotationField(ForwardedSourcesAnnotation)

// neverForwarded are the ranges of addresses that no router forwards.
var neverForwarded = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("224.0.0.0/3"), // multicast, reserved, broadcast
	netip.MustParsePrefix("::/127"),      // unspecified and loopback
	netip.MustParsePrefix("::ffff:0:0/96"),
	netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("ff00::/8"),
}

// ForwardedSources returns the sorted sources of packets that pods of the namespace o may forward,
// and the faults of its annotation. A faulty prefix allows nothing.
func ForwardedSources(o metav1.Object) ([]netip.Prefix, []policy.Finding) {
	value, _, ok := annotationOf(o, ForwardedSourcesAnnotation)
	if !ok {
		return nil, nil
	}
	items := strings.Split(value, ",")
	if len(items) > MaxForwardedSources {
		return nil, []policy.Finding{forwardedSourcesFinding(o.GetName(), "has %d prefixes, the maximum is %d; none is allowed", len(items), MaxForwardedSources)}
	}
	var sources []netip.Prefix
	var findings []policy.Finding
	for _, item := range items {
		p, err := parseForwardedSource(strings.TrimSpace(item))
		if err != nil {
			findings = append(findings, forwardedSourcesFinding(o.GetName(), "%v; it is not allowed", err))
			continue
		}
		sources = append(sources, p)
	}
	slices.SortFunc(sources, netip.Prefix.Compare)
	return slices.Compact(sources), findings
}

// parseForwardedSource is strict: an author who writes host bits or a leading zero may have meant a
// different prefix.
func parseForwardedSource(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%.64q is not a CIDR", s)
	}
	if p != p.Masked() {
		return netip.Prefix{}, fmt.Errorf("%q has host bits, %s has none", s, p.Masked())
	}
	for _, r := range neverForwarded {
		if r.Overlaps(p) {
			return netip.Prefix{}, fmt.Errorf("%q overlaps %s, which no router forwards", s, r)
		}
	}
	return p, nil
}

// RefuseForwardedSource returns the finding that the pods of a namespace may not forward
// packets from p, although its annotation names it.
func RefuseForwardedSource(namespace string, p netip.Prefix, why string) policy.Finding {
	return forwardedSourcesFinding(namespace, "%q %s; it is not allowed", p, why)
}

func forwardedSourcesFinding(namespace, format string, args ...any) policy.Finding {
	return policy.Finding{
		Policy:  policy.Ref{Kind: KindNamespace.Name, Name: namespace},
		Field:   forwardedSourcesField,
		Reason:  policy.InvalidCIDR,
		Message: printable.Text(fmt.Sprintf(format, args...)),
	}
}
