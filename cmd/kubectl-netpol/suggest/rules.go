package suggest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/objectname"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// Policy is a suggested policy.
type Policy struct {
	*networkingv1.NetworkPolicy
	// title names the workload that the policy is for, and further names other workloads that it
	// selects.
	title   string
	further []string
	// ingress and egress are the comments of the rules, several lines for each.
	ingress, egress [][]string
}

// managedBy is the label key of suggested policies, and manager its value.
const (
	managedBy = "app.kubernetes.io/managed-by"
	manager   = "kubectl-netpol"
)

var directions = []policy.Direction{policy.Ingress, policy.Egress}

// subject is the needs of the pods that one selector selects.
type subject struct {
	*selection
	titles []string // of its workloads
	peers  [2]map[string]*peerNeeds
}

// peerNeeds is what a subject needs from one peer in one direction.
type peerNeeds struct {
	key   string
	peer  networkingv1.NetworkPolicyPeer
	pods  []*corev1.Pod // selected by the peer, nil for an address
	ports map[reachability.Port]bool
	flows map[string]*comment // by text
}

// comment is one line about flows.
type comment struct {
	text   string
	count  uint64
	unseen string // why it is allowed with a recorded flow, although it is not recorded
}

func (s *subject) title() string { return strings.Join(s.titles, ", ") }

// addresses returns how many peers are single addresses.
func (s *subject) addresses(d policy.Direction) int {
	n := 0
	for _, p := range s.peers[d] {
		if p.peer.IPBlock != nil {
			n++
		}
	}
	return n
}

// addNeeds collects the flows that rules must allow once everything else is denied.
func (s *suggester) addNeeds(all []*resolved) {
	s.addNeedsIn(all, s.withPolicies(s.deciding()))
}

// addNeedsIn collects the flows that rules must allow, by direction: policies of the namespace
// decide about it, and those of a cluster do not allow it.
func (s *suggester) addNeedsIn(all []*resolved, denying *reachability.Cluster) {
	clusters := bothWays(denying)
	for _, f := range all {
		for _, d := range directions {
			if s.isHere(f, d) && slices.ContainsFunc(clusters, func(c *reachability.Cluster) bool {
				return !c.AllowedIn(d, &f.src.endpoint, &f.dst.endpoint, f.port, f.family)
			}) {
				s.add(f, d)
			}
		}
	}
}

// add adds the needs of a flow in one direction.
func (s *suggester) add(f *resolved, d policy.Direction) {
	subjectEnd, peerEnd := f.ends(d)
	sub := s.rules[subjectEnd.selection.key]
	if sub == nil {
		sub = &subject{selection: subjectEnd.selection, peers: [2]map[string]*peerNeeds{{}, {}}}
		s.rules[subjectEnd.selection.key] = sub
	}
	if !slices.Contains(sub.titles, subjectEnd.title) {
		sub.titles = append(sub.titles, subjectEnd.title)
	}
	p := sub.peer(d, peerEnd)
	p.add(f.String(), f.port, f.count)
	if f.several != "" && peerEnd.prefix.IsSingleIP() {
		s.note(fmt.Sprintf("%s stands for further addresses of %s, which are not recorded: name the blocks that they are in.", peerEnd.title, f.several))
	}
	if tcp := (reachability.Port{Proto: packet.TCP, Number: f.port.Number}); f.port == dns && isResolver(f.dst) && !p.ports[tcp] {
		p.ports[tcp] = true
		p.addUnseen(fmt.Sprintf("%s -> %s, %s", f.src.title, f.dst.title, portTitle(tcp)), "for long answers of DNS")
	}
	if d == policy.Egress {
		for _, sibling := range f.siblings {
			p := sub.peer(d, sibling)
			p.ports[f.port] = true
			p.addUnseen(fmt.Sprintf("%s -> %s, %s", f.src.title, sibling.title, portTitle(f.port)), "behind the same Service")
		}
	}
}

// peer returns the needs from one peer in one direction.
func (s *subject) peer(d policy.Direction, e *end) *peerNeeds {
	key := peerKey(e)
	p := s.peers[d][key]
	if p == nil {
		p = &peerNeeds{key: key, peer: e.peer, ports: map[reachability.Port]bool{}, flows: map[string]*comment{}}
		if e.selection != nil {
			p.pods = e.selection.pods
		}
		s.peers[d][key] = p
	}
	return p
}

func (p *peerNeeds) add(text string, port reachability.Port, count uint64) {
	p.ports[port] = true
	line := p.flows[text]
	if line == nil {
		line = &comment{text: text}
		p.flows[text] = line
	}
	line.count, line.unseen = line.count+count, ""
}

// addUnseen adds a flow that is allowed for a reason, unless it was recorded.
func (p *peerNeeds) addUnseen(text, reason string) {
	if p.flows[text] == nil {
		p.flows[text] = &comment{text: text, unseen: reason}
	}
}

// dns is the port of DNS over UDP. Answers that are too long for UDP come over TCP.
var dns = reachability.Port{Proto: packet.UDP, Number: 53}

// isResolver reports whether an end is the cluster's DNS, whatever its name.
func isResolver(e *end) bool {
	return e.workload.Namespace == metav1.NamespaceSystem && e.selection != nil &&
		slices.ContainsFunc(e.selection.pods, func(p *corev1.Pod) bool { return p.Labels["k8s-app"] == "kube-dns" })
}

// peerKey is the same for ends that share a peer. Pods sort before addresses.
func peerKey(e *end) string {
	if e.selection == nil {
		return fmt.Sprintf("2 %v %x %d", e.prefix.Addr().Is6(), e.prefix.Addr().AsSlice(), e.prefix.Bits())
	}
	return "1 " + e.selection.key
}

// denyAll returns a policy that allows nothing in some directions.
func denyAll(namespace string, types ...networkingv1.PolicyType) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: networkingv1.SchemeGroupVersion.String(), Kind: "NetworkPolicy"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: prefix + "default-deny", Labels: map[string]string{managedBy: manager}},
		Spec:       networkingv1.NetworkPolicySpec{PolicyTypes: types},
	}
}

// prefix begins the names of suggested policies.
const prefix = "suggested-"

// annotated returns p with the value of the audit annotation, which enforces or audits it.
func annotated(p *networkingv1.NetworkPolicy, value string) *networkingv1.NetworkPolicy {
	p = p.DeepCopy()
	p.Annotations = map[string]string{compile.EnforcementAnnotation: value}
	return p
}

// denyRest returns the policy that denies everything that no rule allows, or nothing if the
// namespace has such policies.
func (s *suggester) denyRest() []*networkingv1.NetworkPolicy {
	var types []networkingv1.PolicyType
	for _, t := range []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress} {
		if !slices.ContainsFunc(s.ownPolicies(), func(p *networkingv1.NetworkPolicy) bool {
			return !s.replaceable(p) && empty(&p.Spec.PodSelector) && isolates(p, t)
		}) {
			types = append(types, t)
		}
	}
	if len(types) == 0 {
		return nil
	}
	return []*networkingv1.NetworkPolicy{denyAll(s.input.Namespace, types...)}
}

// isolates reports whether a policy isolates its pods in a direction.
func isolates(p *networkingv1.NetworkPolicy, t networkingv1.PolicyType) bool {
	if len(p.Spec.PolicyTypes) > 0 {
		return slices.Contains(p.Spec.PolicyTypes, t)
	}
	return t == networkingv1.PolicyTypeIngress || len(p.Spec.Egress) > 0
}

// replaceable reports whether a policy is an earlier suggestion that is not enforced. An
// enforced one stays as it is.
func (s *suggester) replaceable(p *networkingv1.NetworkPolicy) bool {
	return p.Labels[managedBy] == manager && s.audits(p)
}

// policies returns one policy for each subject and the policy that denies the rest.
func (s *suggester) policies() []Policy {
	var all []Policy
	names := map[string]bool{}
	for _, p := range s.ownPolicies() {
		names[p.Name] = !s.replaceable(p)
	}
	subjects := sortedKeys(s.rules)
	slices.SortStableFunc(subjects, func(a, b string) int { return s.rules[a].workload.Compare(s.rules[b].workload) })
	for _, key := range subjects {
		all = append(all, s.rules[key].policy(s, prefix+s.rules[key].workload.Name, names))
	}
	for _, deny := range s.denyRest() {
		deny.Name = reserve(deny.Name, names)
		all = append(all, Policy{NetworkPolicy: deny})
	}
	if !s.input.Enforced {
		for i := range all {
			all[i].NetworkPolicy = annotated(all[i].NetworkPolicy, compile.AuditValue)
		}
	}
	return all
}

// reserve returns an unused name derived from name and marks it as used.
func reserve(name string, names map[string]bool) string {
	unique := objectname.Valid(name, "")
	for n := 2; names[unique]; n++ {
		unique = objectname.Valid(name, fmt.Sprintf("-%d", n))
	}
	names[unique] = true
	return unique
}

// policy returns the policy of a subject, with a name that is not among names.
func (sub *subject) policy(s *suggester, name string, names map[string]bool) Policy {
	p := denyAll(s.input.Namespace)
	p.Name = reserve(name, names)
	p.Spec.PodSelector = sub.selector
	out := Policy{NetworkPolicy: p, title: sub.title()}
	for _, ref := range sub.further {
		if title := s.titleOf(ref); !slices.Contains(sub.titles, title) {
			out.further = append(out.further, title)
		}
	}
	for _, g := range sub.grouped(policy.Ingress) {
		p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: g.peers, Ports: g.ports})
		out.ingress = append(out.ingress, g.comments)
	}
	for _, g := range sub.grouped(policy.Egress) {
		p.Spec.Egress = append(p.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: g.peers, Ports: g.ports})
		out.egress = append(out.egress, g.comments)
	}
	if len(p.Spec.Ingress) > 0 {
		p.Spec.PolicyTypes = append(p.Spec.PolicyTypes, networkingv1.PolicyTypeIngress)
	}
	if len(p.Spec.Egress) > 0 {
		p.Spec.PolicyTypes = append(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
	}
	return out
}

// group is the peers from which the same ports are needed.
type group struct {
	peers    []networkingv1.NetworkPolicyPeer
	ports    []networkingv1.NetworkPolicyPort
	comments []string
}

// mostComments limits the comment lines of a rule.
const mostComments = 12

// grouped returns the rules of a direction. Peers with the same ports share one.
func (sub *subject) grouped(d policy.Direction) []*group {
	var groups []*group
	byPorts := map[string]*group{}
	for _, key := range sortedKeys(sub.peers[d]) {
		p := sub.peers[d][key]
		declaring := p.pods
		if d == policy.Ingress {
			declaring = sub.pods
		}
		ports := p.rulePorts(declaring)
		text := fmt.Sprint(portTexts(ports))
		g := byPorts[text]
		if g == nil {
			g = &group{ports: ports}
			byPorts[text] = g
			groups = append(groups, g)
		}
		g.peers = append(g.peers, p.peer)
		g.comments = append(g.comments, p.comments()...)
	}
	for _, g := range groups {
		if more := len(g.comments) - mostComments; more > 0 {
			g.comments = append(g.comments[:mostComments], fmt.Sprintf("and %d more", more))
		}
	}
	return groups
}

// comments returns the lines about the flows of a peer.
func (p *peerNeeds) comments() []string {
	var lines []string
	for _, text := range sortedKeys(p.flows) {
		switch c := p.flows[text]; {
		case c.unseen != "":
			lines = append(lines, text+": not seen, "+c.unseen)
		case c.count == 0:
			lines = append(lines, text)
		case c.count == 1:
			lines = append(lines, text+": 1 packet")
		default:
			lines = append(lines, fmt.Sprintf("%s: %d packets", text, c.count))
		}
	}
	return lines
}

// rulePorts returns the ports of a rule. It uses a port's name if all pods give it to that
// number and to no other.
func (p *peerNeeds) rulePorts(pods []*corev1.Pod) []networkingv1.NetworkPolicyPort {
	var ports []networkingv1.NetworkPolicyPort
	needed := make([]reachability.Port, 0, len(p.ports))
	for port := range p.ports {
		needed = append(needed, port)
	}
	slices.SortFunc(needed, func(a, b reachability.Port) int {
		return cmp.Or(cmp.Compare(a.Number, b.Number), cmp.Compare(a.Proto, b.Proto))
	})
	for _, port := range needed {
		protocol := corev1.Protocol(port.Proto.String())
		value := intstr.FromInt32(int32(port.Number))
		if name := declared(port, pods); name != "" {
			value = intstr.FromString(name)
		}
		ports = append(ports, networkingv1.NetworkPolicyPort{Protocol: &protocol, Port: &value})
	}
	return ports
}

// declared returns the name that all pods give to a port and to no other of its protocol,
// or "".
func declared(port reachability.Port, pods []*corev1.Pod) string {
	if len(pods) == 0 {
		return ""
	}
	var names []string
	for _, n := range compile.NamedPorts(pods[0]) {
		if n.Proto == port.Proto && n.Port == port.Number {
			names = append(names, n.Name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		if !slices.ContainsFunc(pods, func(pod *corev1.Pod) bool { return !means(pod, name, port) }) {
			return name
		}
	}
	return ""
}

// means reports whether a pod gives a name to a port and to no other of its protocol.
func means(pod *corev1.Pod, name string, port reachability.Port) bool {
	found := false
	for _, n := range compile.NamedPorts(pod) {
		if n.Name != name || n.Proto != port.Proto {
			continue
		}
		if n.Port != port.Number {
			return false
		}
		found = true
	}
	return found
}

func portTexts(ports []networkingv1.NetworkPolicyPort) []string {
	var texts []string
	for _, p := range ports {
		texts = append(texts, string(*p.Protocol)+"/"+p.Port.String())
	}
	return texts
}
