package lint

import "slices"

// Rule is a kind of mistake.
type Rule struct {
	// ID names the rule in output, flags and comments. It never changes.
	ID       string
	Severity Severity // the highest of its findings
	Title    string   // describes the mistake in one line
	Why      string   // why it is a mistake
	Fix      string   // what to write instead, unless a finding has a better fix

	// check adds the findings of the rule. It is nil if they come from elsewhere: from reading
	// files, from the agents' compiler or from comments in files.
	check func(*cluster)
}

// The rules whose findings do not come from Check.
const (
	// Refused is for objects that API servers refuse.
	Refused = "refused"
	// NotHonoured is for findings of the agents, see reachability.Finding.
	NotHonoured = "not-honoured"
	// Annotation is for those about names of annotations.
	Annotation = "annotation"
	// IgnoreComment is for wrong or unused comments "netpol:ignore".
	IgnoreComment = "ignore-comment"
)

// RuleNamed returns the rule with that ID, or nil.
func RuleNamed(id string) *Rule {
	if i := slices.IndexFunc(Rules, func(r *Rule) bool { return r.ID == id }); i >= 0 {
		return Rules[i]
	}
	return nil
}

// Rules are all rules in the order of the documentation. The command's help, docs/lints.md
// and the SARIF metadata are generated from them.
var Rules = []*Rule{
	{
		ID: Refused, Severity: Error,
		Title: "A manifest that API servers refuse, or that another one contradicts",
		Why:   "The object is not created or changed; of two with one name the last that is applied counts.",
		Fix:   "Correct the field, or remove one of two.",
	},
	{
		ID: NotHonoured, Severity: Error,
		Title: "A field that agents do not enforce as written",
		Why:   "The field cannot be read, or is switched off. Agents enforce something else instead: a peer that allows matches nothing, one that denies matches everything, and a subject selects no pod.",
		Fix:   "Correct the field.",
	},
	{
		ID: Annotation, Severity: Warning,
		Title: "An annotation of these agents with a former or an unknown name",
		Why:   "Agents still read a former name, and other ones have no effect.",
		Fix:   "Write the name that is read.",
	},
	{
		ID: "selects-no-pod", Severity: Warning, check: selectsNoPod,
		Title: "A policy that selects no pod",
		Why:   "The pods it is for stay open, unless a controller creates them with these labels.",
		Fix:   "Write the labels that the pods have.",
	},
	{
		ID: "only-host-network", Severity: Warning, check: onlyHostNetwork,
		Title: "A policy that selects only host-network pods",
		Why:   "No policy applies to pods with the addresses of their node.",
		Fix:   "Give the pods a network of their own, or protect the node by other means.",
	},
	{
		ID: "namespace-without-pods", Severity: Warning, check: namespaceWithoutPods,
		Title: "A policy in a namespace that has no pods",
		Why:   "A NetworkPolicy applies to pods of its own namespace only.",
		Fix:   "Put the policy into the namespace of the pods.",
	},
	{
		ID: "peer-selects-none", Severity: Warning, check: peers,
		Title: "A peer that selects no pod",
		Why:   "What it is for is denied, or in a Deny allowed.",
		Fix:   "Write the labels that the pods and their namespace have.",
	},
	{
		ID: "namespace-label", Severity: Warning, check: peers,
		Title: "A namespaceSelector by the name of a namespace that has no such label",
		Why:   "The API server gives each namespace the label kubernetes.io/metadata.name, and no other.",
	},
	{
		ID: "or-not-and", Severity: Warning, check: peers,
		Title: "namespaceSelector and podSelector in two items where one is meant",
		Why:   "Two items are alternatives: one allows every pod of those namespaces, the other only pods of the namespace of the policy.",
		Fix:   "Remove the dash before podSelector, so that both selectors are in one item.",
	},
	{
		ID: "host-network-peer", Severity: Warning, check: peers,
		Title: "A peer that selects only host-network pods",
		Why:   "Selectors of pods never match packets with the address of a node.",
		Fix:   "Use an ipBlock with the addresses of the nodes. What a node sends to its own pods is always allowed.",
	},
	{
		ID: "empty-peers", Severity: Warning, check: emptyPeers,
		Title: "An empty list of peers, which allows all peers",
		Why:   "It means the same as no list: every peer, inside and outside of the cluster.",
		Fix:   "To allow all peers leave the list out. To allow none remove the rule.",
	},
	{
		ID: "half-open", Severity: Warning, check: halfOpen,
		Title: "A rule that allows one direction while the other end is isolated",
		Why:   "A connection needs egress at its source and ingress at its destination.",
	},
	{
		ID: "backend-denied", Severity: Warning, check: backendDenied,
		Title: "An Ingress, a route or a Service to pods that deny its clients",
		Why:   "Policies see connections to the port of the pods behind it: from the pods of the controller, or from addresses outside.",
		Fix:   "Allow ingress from these clients to this port.",
	},
	{
		ID: "node-source", Severity: Warning, check: nodeSource,
		Title: "Policies that tell the clients of a Service apart by addresses that nodes replace",
		Why:   "With externalTrafficPolicy Cluster, packets that enter through another node have its address when policies of the pod see them.",
		Fix:   "Set externalTrafficPolicy: Local, so that pods see the addresses of their clients.",
	},
	{
		ID: "service-port", Severity: Warning, check: servicePort,
		Title: "The port of a Service where the port behind it is meant",
		Why:   "Policies see packets after the Service's address and port were replaced by those of what is behind it.",
	},
	{
		ID: "named-port", Severity: Warning, check: namedPort,
		Title: "A named port that no destination declares",
		Why:   "A name is looked up among the containerPorts of the destination pod, with the protocol.",
		Fix:   "Declare the port in the pods, or write its number.",
	},
	{
		ID: "service-address", Severity: Warning, check: addresses,
		Title: "The address of a Service in a block",
		Why:   "Policies see packets after the Service's address was replaced by that of a pod: the block never matches.",
		Fix:   "Select the pods behind the Service.",
	},
	{
		ID: "pod-address", Severity: Warning, check: addresses,
		Title: "The address of a pod in a block",
		Why:   "A pod that is created again has another address, and another pod may get this one.",
		Fix:   "Select the pod by its labels.",
	},
	{
		ID: "internet-includes-pods", Severity: Info, check: internetIncludesPods,
		Title: "Egress to 0.0.0.0/0 or ::/0, which includes all pods and nodes",
		Why:   "Blocks match the addresses of pods and nodes, too.",
		Fix:   "For the internet alone put the ranges of pods, nodes and other private networks into except.",
	},
	{
		ID: "one-family", Severity: Warning, check: oneFamily,
		Title: "0.0.0.0/0 without ::/0, or the reverse, for dual-stack pods",
		Why:   "A block of one family never matches an address of the other.",
	},
	{
		ID: "except-reopened", Severity: Warning, check: exceptReopened,
		Title: "An except or NotIn that another item or policy allows",
		Why:   "An exception does not deny, it only limits its own item.",
		Fix:   "Put the same exception into the other item, write both in one item, or remove the other.",
	},
	{
		ID: "cidr-form", Severity: Warning, check: cidrForm,
		Title: "A block with host bits, leading zeros or an IPv4-mapped address",
		Why:   "Programs read such blocks differently, and newer API servers refuse them.",
	},
	{
		ID: "dead-direction", Severity: Error, check: deadDirection,
		Title: "Rules of a direction that policyTypes leaves out",
		Why:   "Rules of a direction that is not in policyTypes are ignored, and the direction stays open.",
	},
	{
		ID: "implicit-ingress", Severity: Warning, check: implicitIngress,
		Title: "Egress rules without policyTypes, which also isolate ingress",
		Why:   "Without a rule of ingress the policy denies all of it.",
		Fix:   "Write policyTypes: [Egress], or [Ingress, Egress] if this is meant.",
	},
	{
		ID: "no-dns", Severity: Warning, check: dns,
		Title: "Egress is restricted and DNS is not allowed",
		Why:   "Connections by name fail before policies see them.",
		Fix:   "Allow UDP and TCP 53 to the DNS pods: namespaceSelector kubernetes.io/metadata.name: kube-system with podSelector k8s-app: kube-dns.",
	},
	{
		ID: "dns-without-tcp", Severity: Info, check: dns,
		Title: "DNS is allowed by UDP and not by TCP",
		Why:   "Names whose answers are too long for UDP do not resolve.",
		Fix:   "Allow TCP 53, too.",
	},
	{
		ID: "dns-port", Severity: Warning, check: dns,
		Title: "DNS is allowed on port 53 and the DNS pods listen on another one",
		Why:   "Policies see the port of the pod, which the Service maps port 53 to.",
	},
	{
		ID: "allow-all-shadows", Severity: Warning, check: allowAllShadows,
		Title: "A rule that allows everything beside narrower ones",
		Why:   "The narrower rules of these pods have no effect.",
		Fix:   "Remove the rule, or the narrower ones.",
	},
	{
		ID: "shadowed", Severity: Info, check: shadowed,
		Title: "A policy that changes nothing, because others say all of it",
		Why:   "Whoever removes the policy to close something, or changes it, changes nothing.",
		Fix:   "Remove one of them.",
	},
	{
		ID: "no-default-deny", Severity: Info, check: noDefaultDeny,
		Title: "Pods that no policy isolates",
		Why:   "They accept connections from everywhere, and so do new pods.",
		Fix:   "Add a policy with podSelector {} and policyTypes [Ingress] to the namespace.",
	},
	{
		ID: IgnoreComment, Severity: Warning,
		Title: "A netpol:ignore that is wrong or ignores nothing",
		Why:   "A comment that is not needed any more will hide the next mistake.",
		Fix:   "Write # netpol:ignore RULE reason, or remove the comment.",
	},
}
