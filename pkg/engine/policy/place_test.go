package policy

import "testing"

func TestPlaceContains(t *testing.T) {
	rule := Place{Part: RulePart, Direction: Ingress, Rule: 1}
	peers := Place{Part: PeersPart, Direction: Ingress, Rule: 1, Item: AllItems}
	peer := Place{Part: PeersPart, Direction: Ingress, Rule: 1, Item: 2}
	for name, tc := range map[string]struct {
		outer, inner Place
		want         bool
	}{
		"the policy and a peer":                  {Place{}, peer, true},
		"a peer and the policy":                  {peer, Place{}, false},
		"a rule and itself":                      {rule, rule, true},
		"a rule and its list":                    {rule, peers, true},
		"a rule and a peer of it":                {rule, peer, true},
		"a list and its rule":                    {peers, rule, false},
		"a list and itself":                      {peers, peers, true},
		"a list and an item":                     {peers, peer, true},
		"an item and its list":                   {peer, peers, false},
		"an item and itself":                     {peer, peer, true},
		"an item and another":                    {peer, Place{PeersPart, Ingress, 1, 3}, false},
		"peers and ports":                        {peers, Place{PortsPart, Ingress, 1, 2}, false},
		"a peer and the port of the same index":  {peer, Place{PortsPart, Ingress, 1, 2}, false},
		"a rule and a peer of another":           {rule, Place{PeersPart, Ingress, 0, 2}, false},
		"a rule and one of the other direction":  {rule, Place{RulePart, Egress, 1, 0}, false},
		"peers and those of the other direction": {peers, Place{PeersPart, Egress, 1, 2}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.outer.Contains(tc.inner); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}
