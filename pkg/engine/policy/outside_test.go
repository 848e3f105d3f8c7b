package policy

import (
	"fmt"
	"net/netip"
	"testing"
)

// block is a peer with blocks. The first one has exceptions.
func block(cidr string, holes ...string) Peer {
	b := Block{Prefix: netip.MustParsePrefix(cidr)}
	for _, hole := range holes {
		b.Except = append(b.Except, netip.MustParsePrefix(hole))
	}
	return Peer{Blocks: []Block{b}}
}

// learnedNames returns the names of addrWeb.
type learnedNames Names

func (n learnedNames) Names(_, addr netip.Addr) *Names {
	if addr != addrWeb {
		return nil
	}
	return (*Names)(&n)
}

func TestOutside(t *testing.T) {
	many := rule(NetworkPolicyTier, Allow)
	many.AnyPeer = false
	for i := range maxItems + 1 {
		many.Peers = append(many.Peers, block(fmt.Sprintf("10.%d.%d.0/24", 128+i>>8, i&0xff)))
	}
	last := many
	last.Peers = append(many.Peers[:maxItems-1:maxItems-1], block("192.0.2.0/24"))
	many.Peers[maxItems] = block("192.0.2.0/24")
	for _, tc := range []struct {
		name  string
		rules []Rule
		to    netip.Addr
		want  string
	}{
		{"a block", []Rule{rule(NetworkPolicyTier, Allow, block("192.0.2.0/24")), isolate()}, addrWeb, "192.0.2.0/24"},
		{"the first of two blocks", []Rule{rule(NetworkPolicyTier, Allow, block("0.0.0.0/0", "192.0.2.0/28"), block("192.0.0.0/16"), block("192.0.2.7/32"))}, addrWeb, "192.0.0.0/16"},
		{"of the rule that decides", []Rule{rule(AdminTier, Deny, block("192.0.2.0/24")), rule(NetworkPolicyTier, Allow, block("0.0.0.0/0"))}, addrWeb, "192.0.2.0/24"},
		{"a domain", []Rule{rule(AdminTier, Allow, Peer{Domains: []Domain{{Name: "other.example"}, {Name: "example.com", Below: true}}})}, addrWeb, "*.example.com"},
		{"a domain before a block", []Rule{rule(AdminTier, Allow, Peer{Domains: []Domain{{Name: "www.example.com"}}}, block("0.0.0.0/0"))}, addrWeb, "www.example.com"},
		{"a domain of another address", []Rule{rule(AdminTier, Allow, Peer{Domains: []Domain{{Name: "www.example.com"}}}, block("0.0.0.0/0"))}, netip.MustParseAddr("192.0.2.8"), "0.0.0.0/0"},
		{"any peer", []Rule{rule(NetworkPolicyTier, Allow), isolate()}, addrWeb, ""},
		{"isolated", []Rule{rule(NetworkPolicyTier, Allow, block("198.51.100.0/24")), isolate()}, addrWeb, ""},
		{"a pod in the block", []Rule{rule(NetworkPolicyTier, Allow, block("10.0.0.0/8"))}, addrC, ""},
		{"the last item that is looked at", []Rule{last}, addrWeb, "192.0.2.0/24"},
		{"an item behind that", []Rule{many}, addrWeb, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := snapshot(nil, &Chain{Rules: tc.rules})
			q := Query{Packet: tcp(addrA, tc.to, 443), Learned: learnedNames{"www.example.com"}}
			outside := func(s *Snapshot, d Decision) string {
				o := s.Outside(q, d)
				if o.Block.IsValid() {
					return o.Block.String()
				}
				return o.Domain.String()
			}
			d := s.Evaluate(q)
			if got := outside(s, d); got != tc.want {
				t.Errorf("%v: %q, want %q", d, got, tc.want)
			}
			if d.Policy != nil {
				next := *d.Policy
				next.Generation++
				d.Policy = &next
			}
			if got := outside(s, d); got != tc.want {
				t.Errorf("by another generation of the policy: %q, want %q", got, tc.want)
			}
			if got := outside(snapshot(nil, &Chain{Rules: []Rule{rule(BaselineTier, Allow, block("0.0.0.0/0"))}}), d); got != "" {
				t.Errorf("a snapshot in which another rule decides says %q", got)
			}
		})
	}
}
