// Package suggest generates the smallest NetworkPolicies of a namespace that allow the
// recorded flows. It decides which flows count and which selectors describe their ends, and
// proves that the suggestion allows them. It does not know where records and the cluster
// come from or what happens to the policies.
package suggest

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/exposure"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// Input is the basis of a suggestion. It is only read.
type Input struct {
	Cluster clusterstate.Input
	// PodRanges are those of reachability.New.
	PodRanges []netip.Prefix
	// Selectors are the pod selectors of workloads, as far as they are known.
	Selectors map[workloads.Ref]*metav1.LabelSelector
	// Namespace is the one to suggest policies for.
	Namespace string
	Records   []flows.Record
	// Blocks name blocks of external addresses.
	Blocks []Block
	Behind exposure.Backends
	// Translated are the addresses of Services.
	Translated reachability.Translated
	// Denied includes flows that enforced policies denied.
	Denied bool
	// Enforced leaves out the annotation that makes policies audited.
	Enforced bool
}

// Suggestion is the policies with the notes about them.
type Suggestion struct {
	// Flows counts the flows that the enforced policies allow: all that count except
	// Uncovered.
	Flows    int
	Policies []Policy // may be enforced one by one in this order
	// Uncovered are the flows that NetworkPolicies of the namespace cannot allow on their own.
	// If policies of the other end deny a flow, there are still rules for it here.
	Uncovered []Uncovered
	// Denied counts the flows that were ignored because they had been denied.
	Denied int
	// Audited names the other audited NetworkPolicies of the namespace.
	Audited []string
	Notes   []string // sentences
}

// Uncovered is a flow that the suggestion does not allow, with the reason.
type Uncovered struct {
	Flow, Reason string // Flow is between workloads
	Flows        int    // how many flows of pods these are
}

// suggester builds a suggestion.
type suggester struct {
	*cluster
	Suggestion
	rules map[string]*subject // by selection.key
}

// Make returns the suggestion for the flows of a namespace that there is. An error says what is missing.
func Make(in Input) (*Suggestion, error) {
	all, late := withoutLate(collect(&in))
	counting := slices.DeleteFunc(slices.Clone(all), func(f *flow) bool { return f.denied && !in.Denied })
	denied := len(all) - len(counting)
	if len(counting) == 0 {
		return nil, nothing(&in, denied)
	}
	s := &suggester{cluster: newCluster(&in, counting), rules: map[string]*subject{}, Suggestion: Suggestion{Denied: denied}}
	found := s.resolve(counting)
	found = s.withoutImpossible(found)
	s.addNeeds(found)
	s.Policies = s.policies()
	for _, f := range found {
		if !f.deniedElsewhere {
			s.Flows++
		}
	}
	s.Audited = s.otherAudited()
	s.addNotes(found)
	if len(late) > 0 {
		s.note(lateNote(late))
	}
	if err := s.prove(found); err != nil {
		return nil, err
	}
	return &s.Suggestion, nil
}

// nothing explains why there is nothing to suggest from.
func nothing(in *Input, denied int) error {
	agents, recorded := map[string]bool{}, 0
	for i := range in.Records {
		agents[in.Records[i].Node] = true
		if in.Records[i].Type == flows.TypeFlow {
			recorded++
		}
	}
	switch {
	case denied > 0:
		return fmt.Errorf("all recorded flows of namespace %s (%d) were denied by enforced policies, and do not count without --with-denied", in.Namespace, denied)
	case len(in.Records) == 0:
		return errors.New("there are no records, not even one that says which agent has none")
	}
	err := fmt.Errorf("no flow from or to a pod of namespace %s is recorded (flows of all: %d, nodes: %d)", in.Namespace, recorded, len(agents))
	for _, p := range in.Cluster.Policies {
		if np, ok := p.(*networkingv1.NetworkPolicy); ok && np.Namespace == in.Namespace {
			return fmt.Errorf("%w: only packets of pods that policies select are recorded, and none of them has connected since the agents were started", err)
		}
	}
	return fmt.Errorf("%w: only packets of pods that policies select are recorded, and the namespace has no NetworkPolicy. This one is not enforced, and has them recorded:\n\n%s", err, recording(in.Namespace))
}

// recording returns an audited policy for all pods of a namespace, so that their packets
// are recorded.
func recording(namespace string) string {
	deny := denyAll(namespace, networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress)
	deny.Name = "default-deny"
	s := Suggestion{Policies: []Policy{{NetworkPolicy: annotated(deny, compile.AuditValue)}}}
	text, _ := s.YAML() // this policy can always be written
	return text
}

// resolved is a flow whose ends are known.
type resolved struct {
	*flow
	src, dst *end
	port     reachability.Port
	family   reachability.Family
	// deniedElsewhere is set if policies of the other end deny the flow whatever policies of the
	// namespace allow.
	deniedElsewhere bool
	// siblings are the other addresses that are behind the same Service.
	siblings []*end
}

func (f *resolved) String() string {
	return fmt.Sprintf("%s -> %s, %s", f.src.title, f.dst.title, portTitle(f.port))
}

// ends returns the subject and the peer of one direction.
func (f *resolved) ends(d policy.Direction) (subject, peer *end) {
	if d == policy.Egress {
		return f.src, f.dst
	}
	return f.dst, f.src
}

// resolve finds the ends of flows, and adds the flows without known ends to Uncovered.
func (s *suggester) resolve(all []*flow) []*resolved {
	var found []*resolved
	for _, f := range all {
		r, err := s.resolveOne(f)
		switch {
		case err != nil:
			s.uncovered(s.titled(f), err)
		case r != nil:
			found = append(found, r)
		}
	}
	return found
}

// resolveOne returns nil for a flow that needs no policy.
func (s *suggester) resolveOne(f *flow) (*resolved, error) {
	r := &resolved{flow: f, family: reachability.IPv6}
	var err error
	if r.port, err = f.parsePort(s.input.Cluster.Features); err != nil {
		return nil, err
	}
	if f.alwaysAllowed() {
		return nil, nil
	}
	if r.src, err = s.end(f.source, nil); err != nil {
		return nil, err
	}
	if r.dst, err = s.end(f.destination, f.names); err != nil {
		return nil, err
	}
	if r.dst.selection == nil && s.input.Translated.Has(f.destination.addr) {
		return nil, errors.New("an address of Services: rules are for what stands behind it")
	}
	if err := s.resolveService(r); err != nil {
		return nil, err
	}
	if f.source.addr.Is4() {
		r.family = reachability.IPv4
	}
	if _, ok := reachability.Connectable(&r.src.endpoint, &r.dst.endpoint, r.port, r.family); !ok {
		r.family = reachability.FirstCommon // the pods may have other addresses than when they were recorded
	}
	if _, ok := reachability.Connectable(&r.src.endpoint, &r.dst.endpoint, r.port, r.family); !ok {
		return nil, errors.New("the ends have no addresses of one family today")
	}
	return r, nil
}

func (s *suggester) uncovered(flow string, reason error) {
	for i := range s.Uncovered {
		if u := &s.Uncovered[i]; u.Flow == flow && u.Reason == reason.Error() {
			u.Flows++
			return
		}
	}
	s.Uncovered = append(s.Uncovered, Uncovered{flow, reason.Error(), 1})
}

// withoutImpossible returns the flows that some NetworkPolicy of the namespace can allow on
// its side: those that pass there if one policy allows everything.
func (s *suggester) withoutImpossible(all []*resolved) []*resolved {
	open := s.deciding()
	open.Spec.Ingress, open.Spec.Egress = make([]networkingv1.NetworkPolicyIngressRule, 1), make([]networkingv1.NetworkPolicyEgressRule, 1)
	clusters := bothWays(s.withPolicies(open))
	return slices.DeleteFunc(all, func(f *resolved) bool {
		i := slices.IndexFunc(clusters, func(c *reachability.Cluster) bool { return !s.allowedHere(c, f) })
		impossible := i >= 0
		if !impossible {
			i = slices.IndexFunc(clusters, func(c *reachability.Cluster) bool { return !f.allowed(c) })
			f.deniedElsewhere = i >= 0
		}
		if i >= 0 {
			s.uncovered(f.String(), errors.New(why(clusters[i], f)))
		}
		return impossible
	})
}

func (f *resolved) allowed(c *reachability.Cluster) bool {
	return c.Allowed(&f.src.endpoint, &f.dst.endpoint, f.port, f.family)
}

// allowedHere reports whether the policies of the flow's ends in the namespace allow it.
func (s *suggester) allowedHere(c *reachability.Cluster, f *resolved) bool {
	for _, d := range directions {
		if s.isHere(f, d) && !c.AllowedIn(d, &f.src.endpoint, &f.dst.endpoint, f.port, f.family) {
			return false
		}
	}
	return true
}

// isHere reports whether policies of the namespace decide about a flow in one direction.
func (s *suggester) isHere(f *resolved, d policy.Direction) bool {
	subject, _ := f.ends(d)
	return subject.selection != nil && subject.workload.Namespace == s.input.Namespace
}

// why explains what denies a flow.
func why(c *reachability.Cluster, f *resolved) string {
	e := c.Explain(&f.src.endpoint, &f.dst.endpoint, f.port, f.family)
	var parts []string
	for _, d := range e.Directions {
		if d.Allowed {
			continue
		}
		part := fmt.Sprintf("denied by %s of %s: %s", d.Direction, d.Subject, d.Reason)
		if len(d.Policies) > 0 {
			part += " (" + strings.Join(d.Policies, ", ") + ")"
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, "; ")
}

// bothWays returns the cluster as it is, and with its audited policies enforced.
func bothWays(c *reachability.Cluster) []*reachability.Cluster {
	if enforced := c.IfEnforced(); enforced != nil {
		return []*reachability.Cluster{c, enforced}
	}
	return []*reachability.Cluster{c}
}

// withPolicies returns the cluster with policies of the namespace added. They replace
// policies with the same names.
func (c *cluster) withPolicies(policies ...*networkingv1.NetworkPolicy) *reachability.Cluster {
	return reachability.New(apply(c.objects, policies), c.input.PodRanges...)
}

// apply adds policies to a cluster. They replace policies with the same names.
func apply(in clusterstate.Input, policies []*networkingv1.NetworkPolicy) clusterstate.Input {
	in.Policies = slices.Clone(in.Policies)
	for _, p := range policies {
		in.Policies = slices.DeleteFunc(in.Policies, func(o compile.Object) bool {
			other, ok := o.(*networkingv1.NetworkPolicy)
			return ok && other.Namespace == p.Namespace && other.Name == p.Name
		})
		in.Policies = append(in.Policies, p)
	}
	return in
}

// Apply returns the cluster with the policies added and enforced.
func (s *Suggestion) Apply(in clusterstate.Input) clusterstate.Input {
	return apply(in, s.enforced())
}

// enforced returns the policies in their enforced form.
func (s *Suggestion) enforced() []*networkingv1.NetworkPolicy {
	var all []*networkingv1.NetworkPolicy
	for i := range s.Policies {
		all = append(all, annotated(s.Policies[i].NetworkPolicy, compile.EnforceValue))
	}
	return all
}

// deciding returns an enforced policy for all pods of the namespace that allows nothing. No
// policy of the cluster has its name.
func (s *suggester) deciding() *networkingv1.NetworkPolicy {
	p := annotated(denyAll(s.input.Namespace, networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress), compile.EnforceValue)
	p.Name = "suggested everything"
	return p
}

// prove evaluates every flow with the suggestion enforced and everything else denied, both
// with the other audited policies as they are and with them enforced.
func (s *suggester) prove(all []*resolved) error {
	policies := s.enforced()
	clusters := bothWays(s.withPolicies(policies...))
	for _, c := range append(clusters, bothWays(s.withPolicies(append(policies, s.deciding())...))...) {
		for _, f := range all {
			if !s.allowedHere(c, f) || !f.deniedElsewhere && !f.allowed(c) {
				return fmt.Errorf("the suggestion is wrong, and is not shown: %v would be %s", f, why(c, f))
			}
		}
	}
	return nil
}

// otherAudited returns the names of the audited NetworkPolicies of the namespace that are
// not suggestions.
func (s *suggester) otherAudited() []string {
	var names []string
	for _, p := range s.ownPolicies() {
		if s.audits(p) && !slices.ContainsFunc(s.Policies, func(o Policy) bool { return o.Name == p.Name }) {
			names = append(names, p.Name)
		}
	}
	slices.Sort(names)
	return names
}

// mostAddresses is how many external addresses a workload may have as peers before a note
// recommends blocks.
const mostAddresses = 16

// note adds a note unless it is there already.
func (s *suggester) note(text string) {
	if !slices.Contains(s.Notes, text) {
		s.Notes = append(s.Notes, text)
	}
}

// addNotes adds notes about facts that would surprise a reader.
func (s *suggester) addNotes(all []*resolved) {
	seen := map[workloads.Ref]bool{}
	for _, f := range all {
		seen[f.src.workload], seen[f.dst.workload] = true, true
	}
	var quiet []string
	for ref, pods := range s.byWorkload {
		if ref.Namespace == s.input.Namespace && !seen[ref] && slices.ContainsFunc(pods, selectable) {
			quiet = append(quiet, s.titleOf(ref))
		}
	}
	slices.Sort(quiet)
	if len(quiet) > 0 {
		s.Notes = append(s.Notes, fmt.Sprintf("No flows of %s are recorded: the suggestion allows them nothing.", strings.Join(quiet, ", ")))
	}
	for _, key := range sortedKeys(s.rules) {
		sub := s.rules[key]
		for _, d := range directions {
			if n := sub.addresses(d); n > mostAddresses {
				s.Notes = append(s.Notes, fmt.Sprintf("%s has %d addresses outside of the cluster as peers of %v: name the blocks that they are in.", sub.title(), n, d))
			}
		}
	}
	for _, p := range s.Policies {
		if len(p.further) > 0 {
			s.Notes = append(s.Notes, fmt.Sprintf("%s also selects %s: no label of %s tells them apart.", p.Name, strings.Join(p.further, ", "), p.title))
		}
	}
}
