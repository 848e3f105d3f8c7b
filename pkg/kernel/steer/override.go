package steer

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft/rule"
)

// A change of policies may concern more connections than can be marked at once. Until their marks follow,
// sets override them: by the ends of connections, whatever the direction of a packet, and by their classes.
// First packets are not looked up, because the agent decides them.
const (
	cutChain     = "cut"         // classes
	closedChain  = "closed"      // ends, at postrouting
	inputChain   = "again-input" // ends, at input
	againChain   = "again"       // decides a packet of an established connection
	believeChain = "blocked"     // drops packets of blocked connections

	cutSet        = "cut"         // classes that are denied
	closedFromSet = "closed-from" // pods whose whole egress is denied
	closedToSet   = "closed-to"   // pods whose whole ingress is denied
	ownSet        = "own"         // the addresses in closedFromSet and closedToSet, twice: connections of a pod to itself

	// The connections of these ends may have wrong marks: each packet is decided.
	againFromSet  = "again-from"  // connections from an address
	againToSet    = "again-to"    // connections to an address
	againLinksSet = "again-links" // all connections of an interface

	overridesSet = "overrides" // the families that the sets above have elements of
	reopeningSet = "reopening" // the families whose blocked connections are decided again

	// overrideTimeout ends an override that an agent has left behind.
	overrideTimeout = 5 * time.Minute
)

// End is an address at which connections begin (egress) or end (ingress), or the name of an interface.
type End struct {
	Addr    netip.Addr
	Ingress bool
	Link    string // instead of Addr
}

// Overrides change what happens to packets of established connections. An end or class is in one list.
type Overrides struct {
	// Denied are classes of TCP, UDP and SCTP whose packets are dropped, Ended those whose marks decide again.
	Denied, Ended []packet.Class
	// Closed are the pods whose whole egress or ingress is denied, Opened those for which that has ended.
	// Traffic of the node itself, and of a pod with itself, is not affected.
	Closed, Opened []End
	// Again are ends with connections whose marks may be wrong: the agent decides their packets. At
	// Marked their marks decide again.
	Again, Marked []End
	// Complete ends the overrides that an earlier agent has left.
	Complete bool
}

// overrideKey is the name of a set and the key of an element of it.
type overrideKey struct {
	set  string
	key  [4]string
	ipv6 bool
}

func (k overrideKey) element() *knftables.Element {
	key := slices.DeleteFunc(slices.Clone(k.key[:]), func(part string) bool { return part == "" })
	return &knftables.Element{Set: k.set, Key: key}
}

func classKey(c packet.Class) overrideKey {
	ipv6 := c.Src.Is6()
	return overrideKey{familyName(cutSet, ipv6), [4]string{c.Src.String(), c.Dst.String(), strconv.Itoa(int(c.Proto)), strconv.Itoa(int(c.Port))}, ipv6}
}

func (e End) key(from, to string) overrideKey {
	if e.Ingress {
		from = to
	}
	return overrideKey{familyName(from, e.Addr.Is6()), [4]string{e.Addr.String()}, e.Addr.Is6()}
}

func (e End) closedKey() overrideKey { return e.key(closedFromSet, closedToSet) }

func (e End) againKey() overrideKey {
	if e.Link != "" {
		return overrideKey{set: againLinksSet, key: [4]string{e.Link}}
	}
	return e.key(againFromSet, againToSet)
}

func ownKey(a netip.Addr) overrideKey {
	return overrideKey{familyName(ownSet, a.Is6()), [4]string{a.String(), a.String()}, a.Is6()}
}

// apply changes elements, which are those in the kernel.
func (o Overrides) apply(elements map[overrideKey]struct{}, flowtables func() bool) {
	for _, c := range o.Denied {
		elements[classKey(c)] = struct{}{}
	}
	for _, c := range o.Ended {
		delete(elements, classKey(c))
	}
	for _, e := range o.Closed {
		elements[e.closedKey()] = struct{}{}
		elements[ownKey(e.Addr)] = struct{}{}
	}
	for _, e := range o.Opened {
		delete(elements, e.closedKey())
		other := End{Addr: e.Addr, Ingress: !e.Ingress}
		if _, closed := elements[other.closedKey()]; !closed {
			delete(elements, ownKey(e.Addr))
		}
	}
	for _, e := range o.Again {
		elements[e.againKey()] = struct{}{}
	}
	for _, e := range o.Marked {
		delete(elements, e.againKey())
	}
	applyFamilies(elements, flowtables)
}

// applyFamilies adds and removes the elements of overridesSet and reopeningSet. A flowtable might take a
// blocked connection past all hooks before its packet is decided: it asks for flowtables at each change
// while the connections of any address are decided again.
func applyFamilies(elements map[overrideKey]struct{}, flowtables func() bool) {
	used, again := [2]bool{}, [2]bool{}
	for _, f := range families {
		delete(elements, f.key(overridesSet))
		delete(elements, f.key(reopeningSet))
	}
	for k := range elements {
		for i, f := range families {
			used[i] = used[i] || k.ipv6 == f.ipv6 || k.set == againLinksSet
			again[i] = again[i] || k.set == familyName(againFromSet, f.ipv6) || k.set == familyName(againToSet, f.ipv6)
		}
	}
	reopens := (again[0] || again[1]) && !flowtables()
	for i, f := range families {
		if used[i] {
			elements[f.key(overridesSet)] = struct{}{}
		}
		if again[i] && reopens {
			elements[f.key(reopeningSet)] = struct{}{}
		}
	}
}

// key returns the element of a set of families.
func (f family) key(set string) overrideKey {
	return overrideKey{set, [4]string{f.protocol()}, f.ipv6}
}

// flowtables reports whether the node has flowtables, or may have some.
func (s *Steerer) flowtables(ctx context.Context) bool {
	found, err := s.kernel.flowtables(ctx)
	return found || err != nil
}

// Override changes the overrides in one transaction. It returns an error if another agent holds the table,
// or if the table is not in place yet; the overrides are then written with the table.
func (s *Steerer) Override(ctx context.Context, o Overrides) error {
	return s.locked(ctx, "override the marks of connections", func() error { return s.override(ctx, o) })
}

func (s *Steerer) override(ctx context.Context, o Overrides) error {
	before := make(map[overrideKey]struct{}, len(s.overrides))
	for k := range s.overrides {
		before[k] = struct{}{}
	}
	o.apply(s.overrides, func() bool { return s.flowtables(ctx) })
	if err := s.inUse(); err != nil {
		return err
	}
	tx := &nft.Transaction{}
	if o.Complete {
		s.inherits = false
		s.planOverrides(tx)
		return s.table.RunAt(ctx, tx, 0)
	}
	for _, k := range overridesWithout(before, s.overrides) {
		if !s.inherits || k.set != overridesSet {
			tx.Delete(k.element())
		}
	}
	for _, k := range overridesWithout(s.overrides, before) {
		tx.Add(k.element())
	}
	if tx.NumOperations() == 0 {
		return nil
	}
	err := s.table.RunAt(ctx, tx, 0)
	if err == nil {
		return nil
	}
	// An element may have timed out, or another process has removed it.
	tx = &nft.Transaction{}
	s.planOverrides(tx)
	return s.table.RunAt(ctx, tx, 0)
}

// overridesWithout returns the elements of a that b lacks, in order of their sets.
func overridesWithout(a, b map[overrideKey]struct{}) []overrideKey {
	var missing []overrideKey
	for k := range a {
		if _, ok := b[k]; !ok {
			missing = append(missing, k)
		}
	}
	sortOverrides(missing)
	return missing
}

func sortOverrides(keys []overrideKey) {
	slices.SortFunc(keys, func(a, b overrideKey) int {
		if a.set != b.set {
			return cmp.Compare(a.set, b.set)
		}
		return slices.Compare(a.key[:], b.key[:])
	})
}

// planOverrides replaces the elements of the sets of overrides, because another process may have changed
// them. Those of an earlier agent stay until the marks say what they say, but do not decide about blocked
// connections: there may be a flowtable now.
func (s *Steerer) planOverrides(tx *nft.Transaction) {
	for _, set := range overrideSets() {
		if !s.inherits || set.Name == reopeningSet {
			tx.Flush(&knftables.Set{Name: set.Name})
		}
	}
	for _, k := range overridesWithout(s.overrides, nil) {
		tx.Add(k.element())
	}
}

// overrideSets returns the sets of overrides.
func overrideSets() []*knftables.Set {
	timeout := knftables.PtrTo(overrideTimeout)
	sets := []*knftables.Set{{Name: overridesSet, Type: "nf_proto"}, {Name: reopeningSet, Type: "nf_proto"}, {Name: againLinksSet, Type: "ifname"}}
	for _, f := range families {
		addr := "ipv4_addr"
		if f.ipv6 {
			addr = "ipv6_addr"
		}
		for _, set := range []struct{ name, key string }{
			{cutSet, addr + " . " + addr + " . inet_proto . inet_service"},
			{closedFromSet, addr}, {closedToSet, addr}, {ownSet, addr + " . " + addr},
			{againFromSet, addr}, {againToSet, addr},
		} {
			sets = append(sets, &knftables.Set{Name: familyName(set.name, f.ipv6), Type: set.key})
		}
	}
	for _, set := range sets {
		set.Flags, set.Timeout = []knftables.SetFlag{knftables.TimeoutFlag}, timeout
	}
	return sets
}

func overrideChains(cfg Config) []chain {
	return []chain{
		{name: believeChain, rules: append(reopenRules(), rule.Rule{rule.Drop})},
		{name: againChain, rules: againRules(cfg)},
		{name: cutChain, rules: cutRules(cfg)},
		{name: closedChain, rules: closedRules(cfg)},
		{name: inputChain, rules: inputAgainRules(cfg)},
	}
}

// overridden matches packets of a family with overrides.
var overridden = rule.NFProto.In(overridesSet)

func notFirst(cfg Config) rule.Rule {
	return rule.Rule{rule.CTState.Any(rule.New), rule.CTMark.HasNone(cfg.Mark), rule.Return}
}

// cutRules look up the class of a connection by a packet of either direction.
func cutRules(cfg Config) []rule.Rule {
	rules := []rule.Rule{notFirst(cfg)}
	for _, f := range families {
		rules = append(rules,
			rule.Rule{original, rule.Key{f.Saddr, f.Daddr, rule.L4Proto, rule.THDport}.In(f.set(cutSet)), rule.Drop},
			rule.Rule{replying, rule.Key{f.Daddr, f.Saddr, rule.L4Proto, rule.THSport}.In(f.set(cutSet)), rule.Drop})
	}
	return rules
}

// reopenRules return packets of blocked connections that closedRules and inputAgainRules send to be
// decided. An ICMP error is about a connection and is not decided for it.
func reopenRules() []rule.Rule {
	var rules []rule.Rule
	reopening := rule.Rule{rule.CTState.IsNot(rule.Related), rule.NFProto.In(reopeningSet)}
	for _, f := range families {
		rules = append(rules,
			reopening.And(f.OriginalSaddr.In(f.set(againFromSet)), rule.Return),
			reopening.And(f.ReplySaddr.In(f.set(againToSet)), rule.Return))
	}
	return rules
}

// againRules queue a packet of an established connection with the lower bit, and the higher one if it has the
// direction of the first packet.
func againRules(cfg Config) []rule.Rule {
	return []rule.Rule{
		{rule.MetaMark.Set(cfg.BlockMark)},
		{original, rule.MetaMark.Set(cfg.Mark)},
		{rule.Goto(cfg.queueChain())},
	}
}

// closedRules are only at postrouting: what is for the node itself is not concerned.
func closedRules(cfg Config) []rule.Rule {
	rules := []rule.Rule{
		{rule.Jump(cutChain)},
		notFirst(cfg),
		// The node itself always reaches its pods, and they reach it.
		{fromOwnNode, rule.CTMark.Has(cfg.BlockMark), rule.Drop}, // see reopenRules
		{fromOwnNode, rule.Return},
	}
	var again []rule.Rule
	for _, f := range families {
		rules = append(rules,
			rule.Rule{rule.Key{f.OriginalSaddr, f.ReplySaddr}.In(f.set(ownSet)), rule.Return},
			rule.Rule{f.OriginalSaddr.In(f.set(closedFromSet)), rule.Drop},
			rule.Rule{f.ReplySaddr.In(f.set(closedToSet)), rule.Drop})
		again = append(again,
			rule.Rule{f.OriginalSaddr.In(f.set(againFromSet)), rule.Goto(againChain)},
			rule.Rule{f.ReplySaddr.In(f.set(againToSet)), rule.Goto(againChain)})
	}
	rules = append(rules, rule.Rule{related, anyICMP, rule.Return})
	rules = append(rules, again...)
	return append(rules,
		rule.Rule{rule.IIFName.In(againLinksSet), rule.Goto(againChain)},
		rule.Rule{rule.OIFName.In(againLinksSet), rule.Goto(againChain)})
}

// inputAgainRules decide packets to the node itself.
func inputAgainRules(cfg Config) []rule.Rule {
	rules := []rule.Rule{{rule.Jump(cutChain)}, notFirst(cfg), {replying, rule.Return}, {related, rule.Return}}
	for _, f := range families {
		rules = append(rules, rule.Rule{f.OriginalSaddr.In(f.set(againFromSet)), rule.Goto(againChain)})
	}
	return rules
}
