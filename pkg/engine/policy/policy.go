// Package policy is the compiled model of a cluster's policies and the evaluator that decides about
// packets. It is pure: no clock, no I/O, no API kinds. Only package compile knows what an API field
// means; this package knows endpoints, chains of rules, and decisions. A Decision is what policies
// say about a packet; what the kernel gets is a verdict (queue.Verdict).
package policy

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Action is what a rule does with the packets that it matches.
type Action uint8

const (
	Deny  Action = iota // the zero value, so a forgotten assignment fails closed
	Allow               // allow the packet in this direction
	Pass                // skip the rest of this tier; never the action of a Decision
)

// String returns "deny", "allow" or "pass".
func (a Action) String() string {
	return [...]string{"deny", "allow", "pass"}[a]
}

// Direction is a direction of traffic from the view of a policy's subject.
type Direction uint8

const (
	Ingress Direction = iota // into the subject
	Egress                   // out of the subject

	directions = 2
)

// String returns "ingress" or "egress".
func (d Direction) String() string {
	return [...]string{"ingress", "egress"}[d]
}

// Tier is a group of policies that is evaluated before the next one.
type Tier uint8

const (
	DefaultTier       Tier = iota // no policy decided
	AdminTier                     // administrators' policies that come before NetworkPolicy
	NetworkPolicyTier             // NetworkPolicy
	BaselineTier                  // administrators' policies for what no NetworkPolicy isolates

	tiers = 4
)

// String returns "default", "admin", "networkpolicy" or "baseline".
func (t Tier) String() string {
	return [...]string{"default", "admin", "networkpolicy", "baseline"}[t]
}

// Reason is why a decision was made.
type Reason uint8

const (
	NotSelected   Reason = iota // no policy of that direction selects the pod
	RuleMatched                 // Decision.Rule of Decision.Policy matched
	Isolated                    // policies select the pod and none of their rules matched
	Unmatched                   // policies select the pod, none of their rules matched, none isolates
	Hairpin                     // a pod talks to itself through a Service, which NetworkPolicy allows
	OwnNode                     // a pod talks to its own node, which NetworkPolicy allows
	UnknownPod                  // an address of the node's pod ranges belongs to no known pod (yet)
	UnknownSource               // the source may be a pod of another node that is not known (yet)
	NotEvaluated                // which rules select the peer is still being evaluated
)

// String returns the reason in lower case words.
func (r Reason) String() string {
	return [...]string{"not selected", "rule matched", "isolated", "unmatched", "hairpin", "own node", "unknown pod", "unknown source", "not evaluated"}[r]
}

// Wait is how long a packet may wait for information that its decision depends on.
type Wait uint8

const (
	NoWait    Wait = iota // the decision is final
	ShortWait             // a moment: the pod is about to be known, or the peer evaluated
	LongWait              // seconds: other nodes learn the address of a pod from its status
)

// Decision is what policies say about one packet, and which rule decided. When both directions
// allow, it describes ingress if a policy selects the destination, and egress otherwise. The zero
// Decision denies.
type Decision struct {
	Action    Action // Allow or Deny
	Direction Direction
	Tier      Tier
	Reason    Reason
	// Policy is the policy that decided, nil if none did. For Isolated it is the
	// first of the isolating ones.
	Policy *Ref
	// Rule is the index of the matching rule in its policy's list for Direction. It
	// is valid only with RuleMatched.
	Rule int
	// Disputed is set if the peer may be one of several pods: the packet was decided for each.
	Disputed bool
}

// Wait returns how long the packet waits before d, which denies it until then, is final.
func (d Decision) Wait() Wait {
	switch d.Reason {
	case UnknownPod, NotEvaluated:
		return ShortWait
	case UnknownSource:
		return LongWait
	}
	return NoWait
}

// Allowed reports whether policies allow the packet.
func (d Decision) Allowed() bool { return d.Action == Allow }

// String returns the decision in one line, for logs.
func (d Decision) String() string {
	disputed := ""
	if d.Disputed {
		disputed = ", disputed address"
	}
	switch d.Reason {
	case RuleMatched:
		return fmt.Sprintf("%v %v by %v %s rule %d%s", d.Action, d.Direction, d.Tier, d.Policy, d.Rule, disputed)
	case Isolated:
		return fmt.Sprintf("%v %v by %v %s, isolated%s", d.Action, d.Direction, d.Tier, d.Policy, disputed)
	}
	return fmt.Sprintf("%v %v, %v%s", d.Action, d.Direction, d.Reason, disputed)
}

// Ref names a policy object.
type Ref struct {
	Kind      string // "NetworkPolicy", …
	Namespace string // empty for cluster-scoped kinds
	Name      string
	// Generation is the metadata.generation of the spec that was compiled.
	Generation int64
}

// String returns "namespace/name", or "Kind/name" for a cluster-scoped kind, because policies of
// two such kinds may share a name. The forms do not collide: no namespace begins with a capital.
// For nil it is empty.
func (r *Ref) String() string {
	if r == nil {
		return ""
	}
	if r.Namespace == "" {
		return r.Kind + "/" + r.Name
	}
	return r.Namespace + "/" + r.Name
}

// The reasons of findings. They become reasons of conditions, so they are the API's own constants
// where these exist (FeatureNotSupported).
const (
	FeatureNotSupported = "FeatureNotSupported"
	UnsupportedProtocol = "UnsupportedProtocol"
	InvalidPort         = "InvalidPort"
	InvalidCIDR         = "InvalidCIDR"
	InvalidSelector     = "InvalidSelector"
	InvalidPeer         = "InvalidPeer"
	UnknownCIDRGroup    = "UnknownCIDRGroup" // it may be missing, or not readable here
	InvalidEnforcement  = "InvalidEnforcement"
	InvalidAnnotation   = "InvalidAnnotation"
)

// Part is a part of a policy.
type Part uint8

const (
	WholePart Part = iota // not in a rule: the subject, the types, the name
	RulePart              // a rule
	PeersPart             // the peers of a rule
	PortsPart             // the ports of a rule
)

// Place locates a part of a policy by its indices in the object as written.
type Place struct {
	Part      Part
	Direction Direction // of the rule; not for WholePart
	Rule      int       // its index in the list of Direction; not for WholePart
	Item      int       // of the peers or ports, or AllItems
}

// AllItems is the Item that stands for the whole list.
const AllItems = -1

// Contains reports whether o is p or a part of it.
func (p Place) Contains(o Place) bool {
	switch {
	case p.Part == WholePart:
		return true
	case o.Part == WholePart || p.Direction != o.Direction || p.Rule != o.Rule:
		return false
	case p.Part == RulePart:
		return true
	}
	return p.Part == o.Part && (p.Item == AllItems || p.Item == o.Item)
}

// Finding is a part of a policy that could not be honoured as written. What is
// enforced instead fails closed; the rest of the policy is enforced.
type Finding struct {
	Policy  Ref
	Place   Place
	Field   *field.Path // within Place, "spec.ingress[2].ports[0].endPort"
	Reason  string      // one of the reasons above
	Message string      // for people: what is wrong and what is enforced instead
	// Whole reports that no part of the policy can be enforced as written.
	Whole bool
}

// String returns "Kind namespace/name: field: message".
func (f Finding) String() string {
	name := f.Policy.Name
	if f.Policy.Namespace != "" {
		name = f.Policy.Namespace + "/" + name
	}
	return fmt.Sprintf("%s %s: %s: %s", f.Policy.Kind, name, f.Field, f.Message)
}
