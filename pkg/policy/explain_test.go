package policy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
)

// steps prints the rules that were asked: "tier index", "+" if it matched, and
// the matches of its peers and ports.
func steps(c Course) string {
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
		{"what is behind the decider is not asked", &Chain{Rules: []Rule{rule(NetworkPolicyTier, Allow, pods("pod=b")), isolate()}},
			"networkpolicy 0 + 1"},
		{"a rule that does not match", &Chain{Rules: []Rule{rule(NetworkPolicyTier, Allow, pods("pod=c"), pods("pod=b,x")), isolate()}},
			"networkpolicy 0 6 6; networkpolicy -1 +"},
		{"passed", &Chain{Rules: []Rule{rule(AdminTier, Pass), rule(AdminTier, Deny), rule(BaselineTier, Deny)}},
			"admin 0 +; admin 0 passed +; baseline 0 +"},
		{"nothing decides", &Chain{Rules: []Rule{rule(AdminTier, Deny, pods("pod=c"))}}, "admin 0 6"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, p := snapshot(tc.chain, nil), tcp(addrB, addrA, 80)
			e := s.Explain(p)
			if got := steps(e.Directions[Ingress]); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if want := s.Evaluate(p); e.Decision != want || tc.chain != nil && e.Directions[Ingress].Decision != want {
				t.Errorf("explained %v and %v, evaluated %v", e.Decision, e.Directions[Ingress].Decision, want)
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
	pod := &Endpoint{Namespace: "x", NamespaceLabels: labels.Set{}, Ports: []NamedPort{{"web", packet.TCP, 8080}}}
	addr := netip.MustParseAddr
	for name, tc := range map[string]struct {
		item interface{ explain(*flow) Match }
		flow flow
		want Match
	}{
		"no field":             {&Peer{}, flow{peer: pod}, Unreadable},
		"in the block":         {&Peer{Block: block}, flow{peerAddr: addr("10.9.9.9")}, Matched},
		"in the hole":          {&Peer{Block: block}, flow{peerAddr: addr("10.0.0.1")}, PeerExcepted},
		"outside":              {&Peer{Block: block}, flow{peerAddr: addr("11.0.0.1")}, PeerOutside},
		"no pod":               {&Peer{Pods: &PodSelector{Namespace: "x", Pods: everything}}, flow{}, PeerNoPod},
		"another namespace":    {&Peer{Pods: &PodSelector{Namespace: "y", Pods: everything}}, flow{peer: pod}, PeerOtherNamespace},
		"labels":               {&Peer{Pods: &PodSelector{Namespace: "x", Pods: team}}, flow{peer: pod}, PeerLabels},
		"labels of a pod":      {&Peer{Pods: &PodSelector{Namespaces: everything, Pods: team}}, flow{peer: pod}, PeerLabels},
		"labels anywhere":      {&Peer{Pods: &PodSelector{Namespaces: labels.Everything(), Pods: team}}, flow{peer: &Endpoint{}}, PeerLabels},
		"namespace labels":     {&Peer{Pods: &PodSelector{Namespaces: team, Pods: everything}}, flow{peer: pod}, PeerNamespaceLabels},
		"namespace not known":  {&Peer{Pods: &PodSelector{Namespaces: team, Pods: everything}}, flow{peer: &Endpoint{}}, PeerNamespaceUnknown},
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
