package steer

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft"
)

// A change of policies may concern more connections than can be marked at once. Until their marks follow,
// sets override them: by the ends of connections, whatever the direction of a packet, and by their classes.
// First packets are not looked up, because the agent decides them.
const (
	cutChain    = "cut"    // classes
	closedChain = "closed" // ends

	cutSet        = "cut"         // classes that are denied
	closedFromSet = "closed-from" // pods whose whole egress is denied
	closedToSet   = "closed-to"   // pods whose whole ingress is denied
	ownSet        = "own"         // the addresses in closedFromSet and closedToSet, twice: connections of a pod to itself

	overridesSet = "overrides" // the families that the sets above have addresses of

	// overrideTimeout ends an override that an agent has left behind.
	overrideTimeout = 5 * time.Minute
)

// Overrides change what happens to packets of established connections. An end or class is in one list.
type Overrides struct {
	// Denied are classes of TCP, UDP and SCTP whose packets are dropped, Ended those whose marks decide again.
	Denied, Ended []packet.Class
	// ClosedFrom and ClosedTo are the pods whose whole egress or ingress is denied; OpenedFrom and
	// OpenedTo those for which that has ended. Traffic of the node itself, and of a pod with itself, is not
	// affected.
	ClosedFrom, ClosedTo, OpenedFrom, OpenedTo []netip.Addr
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

func endKey(set string, a netip.Addr) overrideKey {
	return overrideKey{familyName(set, a.Is6()), [4]string{a.String()}, a.Is6()}
}

func ownKey(a netip.Addr) overrideKey {
	return overrideKey{familyName(ownSet, a.Is6()), [4]string{a.String(), a.String()}, a.Is6()}
}

// apply changes elements, which are those in the kernel.
func (o Overrides) apply(elements map[overrideKey]struct{}) {
	for _, c := range o.Denied {
		elements[classKey(c)] = struct{}{}
	}
	for _, c := range o.Ended {
		delete(elements, classKey(c))
	}
	for set, addrs := range map[string][]netip.Addr{closedFromSet: o.ClosedFrom, closedToSet: o.ClosedTo} {
		for _, a := range addrs {
			elements[endKey(set, a)] = struct{}{}
			elements[ownKey(a)] = struct{}{}
		}
	}
	for set, addrs := range map[string][]netip.Addr{closedFromSet: o.OpenedFrom, closedToSet: o.OpenedTo} {
		for _, a := range addrs {
			delete(elements, endKey(set, a))
			_, from := elements[endKey(closedFromSet, a)]
			_, to := elements[endKey(closedToSet, a)]
			if !from && !to {
				delete(elements, ownKey(a))
			}
		}
	}
	o.applyFamilies(elements)
}

// applyFamilies adds and removes the elements of overridesSet.
func (o Overrides) applyFamilies(elements map[overrideKey]struct{}) {
	for _, f := range families {
		delete(elements, f.overrides())
	}
	var used [2]bool
	for k := range elements {
		if k.ipv6 {
			used[1] = true
		} else {
			used[0] = true
		}
		if used[0] && used[1] {
			break
		}
	}
	for i, f := range families {
		if used[i] {
			elements[f.overrides()] = struct{}{}
		}
	}
}

func (f family) overrides() overrideKey {
	return overrideKey{overridesSet, [4]string{f.protocol()}, f.ipv6}
}

// Override changes the overrides in one transaction. It returns an error if another agent holds the table,
// or if the table is not in place yet.
func (s *Steerer) Override(ctx context.Context, o Overrides) error {
	err := s.inUse()
	if err == nil {
		err = s.lockTable(ctx)
	}
	if err == nil {
		err = s.override(ctx, o)
		s.unlockTable()
	}
	if err != nil {
		return fmt.Errorf("override the marks of connections: %w", err)
	}
	return nil
}

func (s *Steerer) override(ctx context.Context, o Overrides) error {
	before := make(map[overrideKey]struct{}, len(s.overrides))
	for k := range s.overrides {
		before[k] = struct{}{}
	}
	o.apply(s.overrides)
	tx := &nft.Transaction{}
	for _, k := range overridesWithout(before, s.overrides) {
		tx.Delete(k.element())
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
// them.
func (s *Steerer) planOverrides(tx *nft.Transaction) {
	if s.cfg.BlockMark == 0 {
		return
	}
	for _, set := range overrideSets() {
		tx.Flush(&knftables.Set{Name: set.Name})
	}
	for _, k := range overridesWithout(s.overrides, nil) {
		tx.Add(k.element())
	}
}

// overrideSets returns the sets of overrides.
func overrideSets() []*knftables.Set {
	timeout := knftables.PtrTo(overrideTimeout)
	sets := []*knftables.Set{{Name: overridesSet, Type: "nf_proto"}}
	for _, f := range families {
		addr := "ipv4_addr"
		if f.ipv6 {
			addr = "ipv6_addr"
		}
		for _, set := range []struct{ name, key string }{
			{cutSet, addr + " . " + addr + " . inet_proto . inet_service"},
			{closedFromSet, addr}, {closedToSet, addr}, {ownSet, addr + " . " + addr},
		} {
			sets = append(sets, &knftables.Set{Name: familyName(set.name, f.ipv6), Type: set.key})
		}
	}
	for _, set := range sets {
		set.Flags, set.Timeout = []knftables.SetFlag{knftables.TimeoutFlag}, timeout
	}
	return sets
}

// overrideSetNames returns the names of the sets of overrides if the chains in all use them.
func overrideSetNames(all []chain) []string {
	if !slices.ContainsFunc(all, func(c chain) bool { return c.name == cutChain }) {
		return nil
	}
	var names []string
	for _, set := range overrideSets() {
		names = append(names, set.Name)
	}
	return names
}

// overrideChains follow no other chains.
func overrideChains(cfg Config) []chain {
	if cfg.BlockMark == 0 {
		return nil
	}
	return []chain{
		{name: cutChain, rules: cutRules(cfg)},
		{name: closedChain, rules: closedRules(cfg)},
	}
}

// overridden matches packets of a family with overrides.
const overridden = "meta nfproto @" + overridesSet

func notFirst(cfg Config) string {
	return fmt.Sprintf("ct state new ct mark & %#x == 0 return", cfg.Mark)
}

// cutRules look up the class of a connection by a packet of either direction.
func cutRules(cfg Config) []string {
	rules := []string{notFirst(cfg)}
	for _, f := range families {
		rules = append(rules,
			fmt.Sprintf("ct direction original %s saddr . %[1]s daddr . meta l4proto . th dport %s drop", f.ip, f.set(cutSet)),
			fmt.Sprintf("ct direction reply %s daddr . %[1]s saddr . meta l4proto . th sport %s drop", f.ip, f.set(cutSet)))
	}
	return rules
}

// closedRules are only at postrouting: what is for the node itself is not concerned.
func closedRules(cfg Config) []string {
	rules := []string{
		"jump " + cutChain,
		notFirst(cfg),
		// The node itself always reaches its pods, and they reach it.
		"fib saddr type local return",
	}
	for _, f := range families {
		rules = append(rules,
			fmt.Sprintf("ct original %s saddr . ct reply %[1]s saddr %s return", f.ip, f.set(ownSet)),
			fmt.Sprintf("ct original %s saddr %s drop", f.ip, f.set(closedFromSet)),
			fmt.Sprintf("ct reply %s saddr %s drop", f.ip, f.set(closedToSet)))
	}
	return rules
}
