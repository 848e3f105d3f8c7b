package steer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sigs.k8s.io/knftables"
)

// A share is how many packets a second one local pod may have judged before those of
// others: as their source or, for what comes from elsewhere, as their destination.
// What exceeds it goes to queues of its own, where it waits for nobody but its like.
// So whoever floods stands in the way of nobody else's first packets, and has all
// the same what the others leave.
//
// A packet has a share only if it is of a pod that is known. So the sets have no more
// elements than the node has pods, whatever addresses a sender invents.
const (
	shareChain    = "share"
	overflowChain = "overflow"

	sentSet     = "sent"     // shares of pods as sources
	receivedSet = "received" // shares of pods as destinations

	// shareSize is more than the pods of any node.
	shareSize = 1 << 16
	// shareTimeout is when an unused share is forgotten. It is full by then.
	shareTimeout = time.Minute
	// shareBurst is what part of a second's share may come at once.
	shareBurst = 4
)

// shares reports whether packets beyond a pod's share have queues of their own.
func (c Config) shares() bool { return c.Share > 0 }

// judgedChain is where a packet goes that is to be judged.
func (c Config) judgedChain() string {
	if c.shares() {
		return shareChain
	}
	return divertChain
}

// shareSetNames are those of the sets that come with chains.
func shareSetNames(all []chain) []string {
	if !slices.ContainsFunc(all, func(c chain) bool { return c.name == shareChain }) {
		return nil
	}
	var names []string
	for _, set := range shareSets() {
		names = append(names, set.Name)
	}
	return names
}

// shareSets are the sets that packets fill. The agent never writes their elements.
func shareSets() []*knftables.Set {
	var sets []*knftables.Set
	for _, name := range []string{sentSet, receivedSet} {
		for _, f := range families {
			sets = append(sets, f.shareSet(familyName(name, f.ipv6)))
		}
	}
	return sets
}

func (f family) shareSet(name string) *knftables.Set {
	set := setSpec{name: name, ipv6: f.ipv6}.object()
	set.Flags = []knftables.SetFlag{knftables.DynamicFlag, knftables.TimeoutFlag}
	set.Timeout, set.Size = knftables.PtrTo(shareTimeout), knftables.PtrTo(uint64(shareSize))
	return set
}

// shareChains are ahead of divertChain.
func shareChains(cfg Config) []chain {
	if !cfg.shares() {
		return nil
	}
	return []chain{
		{name: overflowChain, rules: overflowRules(cfg)},
		{name: shareChain, rules: shareRules(cfg)},
	}
}

// shareRules let pass to divertChain what is within a share. The source counts
// first, so that a pod that floods others uses up nothing of theirs. A full set, or
// one without memory, makes the update fail: such a packet is beyond its share.
func shareRules(cfg Config) []string {
	limit := fmt.Sprintf("limit rate %d/second burst %d packets", cfg.Share, max(1, cfg.Share/shareBurst))
	var rules []string
	for _, f := range families {
		local := fmt.Sprintf("%s saddr %s", f.ip, f.set(podsSet))
		rules = append(rules,
			fmt.Sprintf("%s update %s { %s saddr %s } goto %s", local, f.set(sentSet), f.ip, limit, divertChain),
			fmt.Sprintf("%s goto %s", local, overflowChain),
			fmt.Sprintf("%s daddr %s update %s { %s daddr %s } goto %s", f.ip, f.set(podsSet), f.set(receivedSet), f.ip, limit, divertChain))
	}
	return append(rules, "goto "+overflowChain)
}

// overflowRules are those of divertChain with the other queues.
func overflowRules(cfg Config) []string {
	return []string{
		fmt.Sprintf("counter name %s queue %sto %s", steeredCounter, queueFlags(cfg), cfg.overflow().numbers()),
		"drop",
	}
}

// numbers are queue numbers that follow each other.
type numbers struct{ first, count uint16 }

func (c Config) overflow() numbers { return numbers{c.OverflowQueue, c.Queues} }

func (n numbers) numbers() string {
	if n.count == 1 {
		return fmt.Sprint(n.first)
	}
	return fmt.Sprintf("%d-%d", n.first, n.first+n.count-1)
}

// overlaps reports whether a number is in both.
func (n numbers) overlaps(o numbers) bool {
	return uint32(n.first) < uint32(o.first)+uint32(o.count) && uint32(o.first) < uint32(n.first)+uint32(n.count)
}

// validateShare names every field about shares that cannot work.
func (c Config) validateShare() error {
	if !c.shares() {
		return nil
	}
	var errs []error
	if c.Share > MaxShare {
		errs = append(errs, fmt.Errorf("Share %d is above %d", c.Share, MaxShare))
	}
	if last := uint32(c.OverflowQueue) + uint32(c.Queues) - 1; last > 0xffff {
		errs = append(errs, fmt.Errorf("OverflowQueue: the last queue would be %d, above 65535", last))
	}
	if c.overflow().overlaps(numbers{c.Queue, c.Queues}) || c.ObserveQueue != 0 && c.overflow().overlaps(numbers{c.ObserveQueue, 1}) {
		errs = append(errs, fmt.Errorf("OverflowQueue %d: one of its queues is one of the others", c.OverflowQueue))
	}
	return errors.Join(errs...)
}

// probeShare asks whether packets can update a set with a limit for each element.
func probeShare(ctx context.Context, nft knftables.Interface) error {
	tx := nft.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Add(&knftables.Chain{Name: "probe"})
	tx.Add(families[0].shareSet("probe"))
	tx.Add(&knftables.Rule{Chain: "probe", Rule: "update @probe { ip saddr limit rate 1/second burst 1 packets } accept"})
	err := nft.Check(ctx, tx)
	switch {
	case err == nil:
		return nil
	case knftables.IsNotFound(err):
		return fmt.Errorf("%w: the kernel has no limits for each element of a set (CONFIG_NFT_LIMIT)", errors.ErrUnsupported)
	}
	return fmt.Errorf("probe limits for each element of a set: %w", err)
}
