package reachability

import (
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// Explanation is the decision about one connection with its reasons, as text.
type Explanation struct {
	From     string `json:"from"`
	To       string `json:"to"`
	Port     string `json:"port"`
	Protocol string `json:"protocol"`
	Allowed  bool   `json:"allowed"`
	// Depends says where the ends must be for which answer, if addresses that are not known decide it.
	Depends []string `json:"depends,omitempty"`
	Reason  string   `json:"reason"`
	Notes   []string `json:"notes,omitempty"`
	// Directions are egress and ingress, only egress to the pod's own node, and empty if no
	// agent evaluates the connection.
	Directions []Trace `json:"directions,omitempty"`
	// IfEnforced explains the connection as if audited policies were enforced. It is nil if no
	// audited policy selects the pods.
	IfEnforced *Explanation `json:"ifEnforced,omitempty"`
}

// Trace is the decision of one direction with its reasons.
type Trace struct {
	Direction string   `json:"direction"`
	Subject   string   `json:"subject"` // the endpoint whose policies apply
	Address   string   `json:"address"`
	Node      string   `json:"node,omitempty"` // where the direction is evaluated
	Allowed   bool     `json:"allowed"`
	Reason    string   `json:"reason"`
	Policies  []string `json:"policies,omitempty"` // those that select the subject in this direction
	Tiers     []Tier   `json:"tiers,omitempty"`
	// Findings are the parts that cannot be honoured in policies that select the subject, or
	// may select it once they can be read.
	Findings []Finding `json:"findings,omitempty"`
}

// Tier is the decision of one tier, or the decision that it would have made.
type Tier struct {
	Name  string `json:"name"`
	Rules []Rule `json:"rules,omitempty"` // the evaluated rules
	// NotEvaluated is set if an earlier tier decided.
	NotEvaluated bool   `json:"notEvaluated,omitempty"`
	Outcome      string `json:"outcome"`
}

// Rule is an evaluated rule. A rule with named ports, and with both pods and addresses as
// peers, is listed twice, once for each: addresses declare no ports.
type Rule struct {
	Policy  string `json:"policy"`
	Field   string `json:"field"` // "spec.ingress[0]"
	Action  string `json:"action"`
	Matches bool   `json:"matches"`
	// Skipped is set if an earlier rule passed the tier.
	Skipped bool   `json:"skipped,omitempty"`
	Peers   []Item `json:"peers"`
	Ports   []Item `json:"ports"`
}

// Item is one peer or port of a rule.
type Item struct {
	Field   string `json:"field"` // "spec.ingress[0].from[1]"
	Means   string `json:"means"`
	Matches bool   `json:"matches"`
	Why     string `json:"why,omitempty"` // why the item does not match
}

// Finding is a part of a policy that cannot be honoured as written.
type Finding struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Field     string `json:"field"`
	Reason    string `json:"reason"`
	Message   string `json:"message"`
}

// NewFinding returns f in its printed form.
func NewFinding(f policy.Finding) Finding {
	return Finding{f.Policy.Kind, f.Policy.Namespace, f.Policy.Name, f.Field.String(), f.Reason, f.Message}
}

// Explain evaluates a connection and reports the reasons of the decision.
func (c *Cluster) Explain(src, dst *Endpoint, port Port, family Family) Explanation {
	a := c.Evaluate(src, dst, port, family)
	e := Explanation{
		From: src.Name, To: dst.Name, Port: port.String(), Protocol: port.Proto.String(), Allowed: a.Allowed,
		Notes:      notes(src, dst, port, a),
		IfEnforced: c.explainAudited(src, dst, port, family, a),
	}
	switch {
	case a.Cause == NoCommonFamily:
		e.Reason = fmt.Sprintf("no connection: %s and %s have no address of one family", src.Name, dst.Name)
		if family != FirstCommon {
			e.Reason = fmt.Sprintf("no connection: %s and %s do not both have an %s address", src.Name, dst.Name, family)
		}
	case a.Cause == PortNotDeclared:
		e.Reason = fmt.Sprintf("no connection: %s declares no %v port named %s", dst.Name, port.Proto, port.Name)
	case a.Cause == Itself:
		e.Reason = "always allowed, not evaluated: what a pod sends to its own address does not leave it"
		e.Notes = append(e.Notes, c.hairpinNotes(src, a.Query)...)
	case a.Cause == FromNode:
		e.Reason = "always allowed, not evaluated: a node reaches itself and the pods on it"
	case a.Cause == ToOwnNode:
		e.Reason = "allowed, not evaluated: only an administrator's rule about nodes or networks could deny the pod its own node, and there is none for it"
	default:
		traces := c.traces(a.Query, src, dst)
		out := flow{direction: policy.Egress, packet: a.Query.Packet, src: src, dst: dst, subject: src, peer: dst}
		e.Directions = []Trace{c.trace(traces[policy.Egress], out)}
		if !a.Query.ToHost {
			in := flow{direction: policy.Ingress, packet: a.Query.Packet, src: src, dst: dst, subject: dst, peer: src}
			e.Directions = append(e.Directions, c.trace(traces[policy.Ingress], in))
		}
		e.Reason = summary(e)
		e.Notes = append(e.Notes, c.domainNotes(traces[policy.Egress], out)...)
	}
	return e
}

// summary names the directions that decided.
func summary(e Explanation) string {
	var denying, allowing []string
	for _, d := range e.Directions {
		if d.Allowed {
			allowing = append(allowing, d.Direction)
		} else {
			denying = append(denying, d.Direction+" of "+d.Subject)
		}
	}
	switch {
	case len(denying) > 0:
		return "denied by " + strings.Join(denying, " and by ")
	case len(allowing) == 1:
		return allowing[0] + " allows it, and a node has no policies"
	}
	return strings.Join(allowing, " and ") + " allow it"
}

// notes returns facts that would surprise a reader.
func notes(src, dst *Endpoint, port Port, a Answer) []string {
	var notes []string
	if p := a.Query.Packet; port.Name != "" && p.Dst.IsValid() {
		notes = append(notes, fmt.Sprintf("%s is port %d of %s", port.Name, p.Dst.Port(), dst.Name))
	}
	for i, s := range []*Endpoint{src, dst} {
		peer := []*Endpoint{dst, src}[i]
		switch {
		case s.Kind == Pod && s.Node == "" && peer.onHost(): // nothing else depends on the node
			notes = append(notes, s.Name+" has no spec.nodeName: it is evaluated as by the node that it will be scheduled to")
		case s.Kind == HostNetworkPod:
			notes = append(notes, fmt.Sprintf("%s uses the network of its node %s: to policies it is that node", s.Name, s.Node))
		case s.Kind == Node:
			notes = append(notes, fmt.Sprintf("%s is an address of node %s", s.Name, s.Node))
		}
	}
	return slices.Compact(notes)
}

// hairpinNotes explains that a pod reaches itself directly without any policy, but that
// administrators' policies apply when it connects through a Service, because the connection
// then leaves the pod.
func (c *Cluster) hairpinNotes(pod *Endpoint, q policy.Query) []string {
	d := c.decide(q, pod, pod)
	if d.Allowed() {
		return nil
	}
	return []string{fmt.Sprintf("through a Service it is denied by %v of %s: %s", d.Direction, pod.Name, decisionReason(d))}
}

// domainNotes reports the first rule that would have allowed a denied connection if the pod
// had learned one of the rule's domain names for the address. Rules that do not allow have
// no notes.
func (c *Cluster) domainNotes(trace policy.Trace, f flow) []string {
	if trace.Decision.Allowed() {
		return nil
	}
	for _, s := range trace.Steps {
		ports := s.Rule.AnyPort || slices.Contains(s.Ports, policy.Matched)
		if !s.Passed && !s.Matched && ports && slices.Contains(s.Peers, policy.PeerNotLearned) {
			return []string{fmt.Sprintf("%s %s allows by domain names: if %v is an address that %s has learned for one of them, which only its agent knows, %v allows it",
				s.Rule.Policy, field(f.direction, s.Rule.Index), f.peerAddr(), f.subject.Name, f.direction)}
		}
	}
	return nil
}
