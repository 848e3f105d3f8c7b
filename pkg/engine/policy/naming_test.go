package policy

import (
	"net/netip"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
)

// A policy names the pods that its peers select by labels, not those that it matches by address or as every
// peer, and each once, whichever of its rules and chains do.
func TestNaming(t *testing.T) {
	here := netip.MustParseAddr("10.1.0.1")
	of := func(namespace string) Peer {
		return Peer{Pods: &PodSelector{Namespace: namespace, Pods: labels.Everything()}}
	}
	rule := func(name string, peers ...Peer) Rule {
		return Rule{Action: Allow, Tier: NetworkPolicyTier, Policy: &Ref{Name: name}, Peers: peers, AnyPort: true}
	}
	pod := func(namespace, name string) *Endpoint { return &Endpoint{Namespace: namespace, Name: name} }
	a, b, c := pod("y", "a"), pod("z", "b"), pod("z", "c")
	all := Block{Prefix: netip.MustParsePrefix("0.0.0.0/0")}
	endpoints := NewEndpoints(map[netip.Addr]*Endpoint{here: {
		Namespace: "x", Name: "web",
		Ingress: &Chain{Rules: []Rule{rule("both", of("z"), of("y")), rule("both", of("z")), rule("blocks", Peer{Blocks: []Block{all}}), {Policy: &Ref{Name: "every"}, AnyPeer: true}}},
		Egress:  &Chain{Rules: []Rule{rule("both", of("y")), rule("one", of("z")), rule("none", of("w"))}},
	}})
	s := New(Model{Endpoints: endpoints, Local: NewLocal(endpoints, []netip.Addr{here})})
	got := s.Naming([]*Endpoint{a, b, c})
	want := map[string][]*Endpoint{"both": {a, b, c}, "one": {b, c}}
	if len(got) != len(want) {
		t.Errorf("%d policies name them, want %d", len(got), len(want))
	}
	for name, pods := range want {
		named := got[Ref{Name: name}]
		if len(named) != len(pods) {
			t.Errorf("%s names %v, want %v", name, named, pods)
			continue
		}
		for i := range pods {
			if named[i] != pods[i] {
				t.Errorf("%s names %v, want %v", name, named, pods)
			}
		}
	}
}
