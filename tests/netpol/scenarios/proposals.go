package scenarios

import (
	"slices"
	"strings"

	. "sigs.k8s.io/kube-network-policies/tests/netpol"
)

// proposals are scenarios of fields that are only proposed, each proposal in a file of its own.
var proposals = slices.Concat(ingressByAddress, serviceAccounts, cidrGroups, matchAll)

// onXFrom is a ClusterNetworkPolicy whose subject is namespace x, with rules for ingress that may
// have fields of proposals.
func onXFrom(tier string, rules ...string) Policy {
	return ProposedYAML("p", `{tier: `+tier+`, priority: 10, subject: {namespaces: {matchLabels: {ns: x}}}, ingress: [`+strings.Join(rules, ", ")+`]}`)
}

// onSubject is a ClusterNetworkPolicy of tier Admin with this subject and these rules.
func onSubject(subject, rules string) Policy {
	return ProposedYAML("p", `{tier: Admin, priority: 10, `+subject+`, `+rules+`}`)
}
