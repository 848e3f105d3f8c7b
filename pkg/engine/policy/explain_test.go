package policy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// steps prints the evaluated rules as "tier index", "+" if the rule matched, and the matches of its
// peers and ports, and then what later tiers would have decided.
func steps(c Trace) string {
	var out []string
	for _, s := range c.Steps {
		line := fmt.Sprintf("%v %d", s.Rule.Tier, s.Rule.Index)
		if s.Passed {
			line += " passed"
		}
		if s.Matched {
			line += " +"
		}
		for _, m := range append(s.Peers, s.Ports...) {
			line += fmt.Sprintf(" %d", m)
		}
		out = append(out, line)
	}
	for _, d := range c.Later {
		out = append(out, fmt.Sprintf("later: %v", d))
	}
	return strings.Join(out, "; ")
}

func TestExplainTellsTheWay(t *testing.T) {
	for _, tc := range []struct {
		name  string
		chain *Chain
		want  string
	}{
		{"no chain", nil, ""},
		{"isolated", &Chain{Rules: []Rule{isolate()}}, "networkpolicy -1 +"},
		{"what follows the decider is not evaluated", &Chain{Rules: []Rule{rule(NetworkPolicyTier, Allow, pods("pod=b")), isolate()}},
			"networkpolicy 0 + 1"},
		{"a rule that does not match", &Chain{Rules: []Rule{rule(NetworkPolicyTier, Allow, pods("pod=c"), pods("pod=b,x")), isolate()}},
			"networkpolicy 0 6 6; networkpolicy -1 +"},
		{"passed", &Chain{Rules: []Rule{rule(AdminTier, Pass), rule(AdminTier, Deny), rule(BaselineTier, Deny)}},
			"admin 0 +; admin 0 passed +; baseline 0 +"},
		{"nothing decides", &Chain{Rules: []Rule{rule(AdminTier, Deny, pods("pod=c"))}}, "admin 0 6"},
		{"no tier is left out", &Chain{Rules: []Rule{rule(AdminTier, Deny, pods("pod=c")), rule(BaselineTier, Pass)}}, "admin 0 6; baseline 0 +"},
		{"a tier behind isolation", &Chain{Rules: []Rule{rule(AdminTier, Pass), isolate(), rule(BaselineTier, Deny, pods("pod=c")), rule(BaselineTier, Allow), rule(BaselineTier, Deny)}},
			"admin 0 +; networkpolicy -1 +; later: allow ingress by baseline x/baseline rule 0"},
		{"tiers behind the first", &Chain{Rules: []Rule{rule(AdminTier, Allow), isolate(), rule(BaselineTier, Deny, pods("pod=c"))}},
			"admin 0 +; later: deny ingress by networkpolicy x/isolating, isolated; later: pass ingress, unmatched"},
		{"a tier that would have passed", &Chain{Rules: []Rule{rule(AdminTier, Deny), rule(BaselineTier, Pass)}},
			"admin 0 +; later: pass ingress by baseline x/baseline rule 0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, p := snapshot(tc.chain, nil), tcp(addrB, addrA, 80)
			e := s.Explain(Query{Packet: p})
			if got := steps(e.Directions[Ingress]); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if want := s.Evaluate(Query{Packet: p}); e.Decision != want || tc.chain != nil && e.Directions[Ingress].Decision != want {
				t.Errorf("explained %v and %v, evaluated %v", e.Decision, e.Directions[Ingress].Decision, want)
			}
		})
	}
}

// Explanations of packets to the pod itself and to its own node, which NetworkPolicy always allows,
// contain none of its rules.
func TestExplainTellsWhatNetworkPolicyIsNotAskedAbout(t *testing.T) {
	denyPods := rule(AdminTier, Deny, pods("pod=a"))
	denyAll := rule(AdminTier, Deny)
	for _, tc := range []struct {
		name  string
		query Query
		chain *Chain
		want  string
	}{
		{"itself, admin decides", Query{Packet: tcp(addrA, addrA, 80)}, &Chain{Rules: []Rule{denyPods, isolate()}},
			"admin 0 + 1; later: allow egress, hairpin"},
		{"itself, isolated", Query{Packet: tcp(addrA, addrA, 80)}, &Chain{Rules: []Rule{isolate(), rule(BaselineTier, Deny)}},
			"later: deny egress by baseline x/baseline rule 0"},
		{"own node, admin decides", Query{Packet: tcp(addrA, addrWeb, 80), ToHost: true}, &Chain{Rules: []Rule{denyPods, denyAll, isolate()}},
			"admin 0 2; admin 0 +; later: allow egress, own node"},
		{"own node, isolated", Query{Packet: tcp(addrA, addrWeb, 80), ToHost: true}, &Chain{Rules: []Rule{denyPods, isolate(), rule(BaselineTier, Deny)}},
			"admin 0 2; later: deny egress by baseline x/baseline rule 0"},
		{"own node, not isolated", Query{Packet: tcp(addrA, addrWeb, 80), ToHost: true}, &Chain{Rules: []Rule{denyPods, rule(BaselineTier, Deny)}},
			"admin 0 2; baseline 0 +"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := snapshot(nil, tc.chain)
			e := s.Explain(tc.query)
			if got := steps(e.Directions[Egress]); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if want := s.Evaluate(tc.query); e.Decision != want || e.Directions[Egress].Decision.Action != want.Action {
				t.Errorf("explained %v and %v, evaluated %v", e.Decision, e.Directions[Egress].Decision, want)
			}
		})
	}
}

// Explanations agree with decisions about rules with ports when the ports are hidden.
func TestExplainHiddenPorts(t *testing.T) {
	smtp := func(v Action, tier Tier) Rule {
		r := rule(tier, v)
		r.AnyPort, r.Ports = false, []Port{{Proto: packet.TCP, First: 25, Last: 25}}
		return r
	}
	for name, tc := range map[string]struct {
		rules []Rule
		want  string
	}{
		"allowed, then denied": {[]Rule{smtp(Allow, AdminTier), smtp(Deny, AdminTier)}, "admin 0 19; admin 0 + 1"},
		"passed both ways":     {[]Rule{smtp(Pass, AdminTier), rule(AdminTier, Allow), isolate()}, "admin 0 + 1; admin 0 +; networkpolicy -1 +"},
		"what a later tier would say": {[]Rule{rule(AdminTier, Deny), smtp(Pass, BaselineTier), rule(BaselineTier, Deny)},
			"admin 0 +; later: deny ingress by baseline x/baseline rule 0"},
		"what a later tier would pass": {[]Rule{rule(AdminTier, Deny), smtp(Pass, BaselineTier), rule(BaselineTier, Allow)},
			"admin 0 +; later: pass ingress by baseline x/baseline rule 0"},
	} {
		t.Run(name, func(t *testing.T) {
			p := tcp(addrB, addrA, 0)
			p.Proto = packet.Unknown
			s := snapshot(&Chain{Rules: tc.rules}, nil)
			e := s.Explain(Query{Packet: p})
			if got := steps(e.Directions[Ingress]); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if want := s.Evaluate(Query{Packet: p}); e.Decision != want {
				t.Errorf("explained %v, evaluated %v", e.Decision, want)
			}
		})
	}
}

// If the peer may be a pod too new to be known and an administrator's rule about pods comes first,
// no rule is reported.
func TestExplainOfAnUnknownPodAsksNoRule(t *testing.T) {
	for _, tc := range []struct {
		name  string
		chain *Chain
		want  string
	}{
		{"an administrator first", &Chain{Rules: []Rule{rule(AdminTier, Deny, pods("pod=c")), rule(AdminTier, Allow), isolate()}}, ""},
		{"authors only", &Chain{Rules: []Rule{rule(NetworkPolicyTier, Allow, pods("pod=c")), isolate()}}, "networkpolicy 0 2; networkpolicy -1 +"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := snapshot(tc.chain, nil).Explain(Query{Packet: tcp(addrNew, addrA, 80)})
			if got := steps(e.Directions[Ingress]); got != tc.want || e.Directions[Ingress].Decision.Reason != UnknownPod {
				t.Errorf("got %q by %v, want %q", got, e.Directions[Ingress].Decision, tc.want)
			}
		})
	}
}

func TestExplainTellsWhyAnItemDoesNotMatch(t *testing.T) {
	everything := labels.Everything()
	team, err := labels.Parse("team=a")
	if err != nil {
		t.Fatal(err)
	}
	block := &Block{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Except: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/31")}}
	pod := &Endpoint{Namespace: "x", Account: "default", NamespaceLabels: NewLabels(labels.Set{}), Ports: []NamedPort{{"web", packet.TCP, 8080}}}
	addr := netip.MustParseAddr
	for name, tc := range map[string]struct {
		item interface{ explain(*flow) Match }
		flow flow
		want Match
	}{
		"no field":             {&Peer{}, flow{peer: pod}, Unreadable},
		"in the block":         {&Peer{Blocks: []Block{*block}}, flow{peerAddr: addr("10.9.9.9")}, Matched},
		"in the hole":          {&Peer{Blocks: []Block{*block}}, flow{peerAddr: addr("10.0.0.1")}, PeerExcepted},
		"outside":              {&Peer{Blocks: []Block{*block}}, flow{peerAddr: addr("11.0.0.1")}, PeerNotInBlock},
		"no pod":               {&Peer{Pods: &PodSelector{Namespace: "x", Pods: everything}}, flow{}, PeerNoPod},
		"another namespace":    {&Peer{Pods: &PodSelector{Namespace: "y", Pods: everything}}, flow{peer: pod}, PeerOtherNamespace},
		"labels":               {&Peer{Pods: &PodSelector{Namespace: "x", Pods: team}}, flow{peer: pod}, PeerLabels},
		"labels of a pod":      {&Peer{Pods: &PodSelector{Namespaces: everything, Pods: team}}, flow{peer: pod}, PeerLabels},
		"labels anywhere":      {&Peer{Pods: &PodSelector{Namespaces: labels.Everything(), Pods: team}}, flow{peer: &Endpoint{}}, PeerLabels},
		"namespace labels":     {&Peer{Pods: &PodSelector{Namespaces: team, Pods: everything}}, flow{peer: pod}, PeerNamespaceLabels},
		"namespace not known":  {&Peer{Pods: &PodSelector{Namespaces: team, Pods: everything}}, flow{peer: &Endpoint{}}, PeerNamespaceUnknown},
		"account":              {&Peer{Pods: &PodSelector{Namespaces: everything, Pods: everything, Accounts: []string{"s"}}}, flow{peer: pod}, PeerOtherAccount},
		"one of two accounts":  {&Peer{Pods: &PodSelector{Namespaces: everything, Pods: everything, Accounts: []string{"s", "default"}}}, flow{peer: pod}, Matched},
		"no node":              {&Peer{Nodes: everything}, flow{}, PeerNoNode},
		"another node":         {&Peer{Nodes: team}, flow{host: &Host{labels.Set{"team": "b"}, nil}}, PeerNodeLabels},
		"one of two nodes":     {&Peer{Nodes: team}, flow{host: &Host{nil, labels.Set{"team": "a"}}}, Matched},
		"names not learned":    {&Peer{Domains: []Domain{{Name: "a.example"}}}, flow{scope: allNames}, PeerNotLearned},
		"other names learned":  {&Peer{Domains: []Domain{{Name: "a.example"}}}, flow{names: &Names{"b.example"}, scope: allNames}, PeerNotLearned},
		"a name learned":       {&Peer{Domains: []Domain{{Name: "a.example", Below: true}}}, flow{names: &Names{"b.a.example"}, scope: allNames}, Matched},
		"a name for a pod":     {&Peer{Domains: []Domain{{Name: "a.example"}}}, flow{names: &Names{"a.example"}, scope: clusterNames}, PeerOutOfScope},
		"a name of a Service":  {&Peer{Domains: []Domain{{Name: "local", Below: true}}}, flow{scope: clusterNames}, PeerNotLearned},
		"a name for metadata":  {&Peer{Domains: []Domain{{Name: "local", Below: true}}}, flow{names: &Names{"a.x.svc.cluster.local"}}, PeerOutOfScope},
		"a name of any":        {&Port{Proto: packet.Unknown, Name: "dns"}, flow{proto: packet.UDP, dstPort: 53, dst: &Endpoint{Ports: []NamedPort{{"dns", packet.UDP, 53}}}}, Matched},
		"a name of no ports":   {&Port{Proto: packet.Unknown, Name: "web"}, flow{proto: packet.ICMP, dst: pod}, OtherProtocol},
		"empty range":          {&Port{First: 1}, flow{}, Unreadable},
		"in the range":         {&Port{Proto: packet.TCP, First: 1, Last: 9}, flow{proto: packet.TCP, dstPort: 9}, Matched},
		"another port":         {&Port{Proto: packet.TCP, First: 1, Last: 9}, flow{proto: packet.TCP, dstPort: 10}, OtherPort},
		"another protocol":     {&Port{Proto: packet.TCP, First: 1, Last: 9}, flow{proto: packet.UDP, dstPort: 9}, OtherProtocol},
		"a name and no pod":    {&Port{Proto: packet.TCP, Name: "web"}, flow{proto: packet.TCP, dstPort: 80}, PortNoPod},
		"a name not declared":  {&Port{Proto: packet.TCP, Name: "db"}, flow{proto: packet.TCP, dstPort: 80, dst: pod}, PortNotDeclared},
		"a name for another":   {&Port{Proto: packet.TCP, Name: "web"}, flow{proto: packet.TCP, dstPort: 80, dst: pod}, PortDeclaredOther},
		"a name that it is":    {&Port{Proto: packet.TCP, Name: "web"}, flow{proto: packet.TCP, dstPort: 8080, dst: pod}, Matched},
		"a name, its protocol": {&Port{Proto: packet.UDP, Name: "web"}, flow{proto: packet.TCP, dstPort: 8080, dst: pod}, OtherProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.item.explain(&tc.flow); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}
