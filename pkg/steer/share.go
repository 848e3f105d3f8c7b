package steer

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"sigs.k8s.io/knftables"
)

// A share is the number of packets per second of one local pod that go to the first
// queues: as their source or, for packets from elsewhere, as their destination. What
// exceeds it goes to the overflow queues. So a pod that floods does not delay first
// packets of other pods, and still gets the capacity that they leave.
//
// Only packets of known pods count for a share. So the sets have no more elements than
// the node has pods, whatever addresses a sender forges.
const (
	shareChain    = "share"
	sentChain     = "sent" // for packets of known pods
	overflowChain = "overflow"

	sentSet     = "sent"     // pods as sources
	receivedSet = "received" // pods as destinations

	// shareSize is above the number of pods of any node.
	shareSize = 1 << 16
	// shareTimeout removes an unused element. Its share is full again by then.
	shareTimeout = time.Minute
	// shareBurst is the part of a second's share that may come at once.
	shareBurst = 4
)

// shares reports whether there are overflow queues.
func (c Config) shares() bool { return c.Share > 0 }

// queueChain returns the chain that queues packets.
func (c Config) queueChain() string {
	if c.shares() {
		return shareChain
	}
	return divertChain
}

// shareSetNames returns the names of the sets that the chains in all use for shares.
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

// shareSets are the sets that packets update. The agent does not write their elements.
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

// shareChains come before divertChain.
func shareChains(cfg Config) []chain {
	if !cfg.shares() {
		return nil
	}
	return []chain{
		{name: overflowChain, rules: overflowRules(cfg)},
		{name: sentChain, rules: append(cfg.withinShare(sentSet, "saddr"), "goto "+overflowChain)},
		{name: shareChain, rules: shareRules(cfg)},
	}
}

// shareRules send to divertChain what is within a share. The source counts first, so
// that a pod that floods others does not use their shares.
func shareRules(cfg Config) []string {
	within := cfg.withinShare(receivedSet, "daddr")
	var rules []string
	for i, f := range families {
		rules = append(rules,
			fmt.Sprintf("%s saddr %s goto %s", f.ip, f.set(podsSet), sentChain),
			fmt.Sprintf("%s daddr %s %s", f.ip, f.set(podsSet), within[i]))
	}
	return append(rules, "goto "+overflowChain)
}

// withinShare returns for each family the rule that sends to divertChain what is within
// the share that set has of an address of the packet. The update fails if the set is full
// or the kernel has no memory: such a packet exceeds its share.
func (c Config) withinShare(set, address string) []string {
	var rules []string
	for _, f := range families {
		rules = append(rules, fmt.Sprintf("update %s { %s %s limit rate %d/second burst %d packets } goto %s",
			f.set(set), f.ip, address, c.Share, max(1, c.Share/shareBurst), divertChain))
	}
	return rules
}

// overflowRules are the rules of divertChain with the overflow queues.
func overflowRules(cfg Config) []string {
	return []string{
		countUntracked,
		fmt.Sprintf("counter name %s queue %sto %s", steeredCounter, queueFlags(cfg), cfg.overflow().String()),
		"drop",
	}
}

// queueRange is a range of queue numbers.
type queueRange struct{ first, count uint16 }

func (c Config) overflow() queueRange { return queueRange{c.OverflowQueue, c.Queues} }

// String returns n as rules write it.
func (n queueRange) String() string {
	if n.count == 1 {
		return fmt.Sprint(n.first)
	}
	return fmt.Sprintf("%d-%d", n.first, n.first+n.count-1)
}

// numbers returns the numbers of n.
func (n queueRange) numbers() []uint16 {
	var all []uint16
	for i := range n.count {
		all = append(all, n.first+i)
	}
	return all
}

func (n queueRange) contains(number uint16) bool {
	return number >= n.first && number-n.first < n.count
}

// overlaps reports whether n and o have a number in common.
func (n queueRange) overlaps(o queueRange) bool {
	return uint32(n.first) < uint32(o.first)+uint32(o.count) && uint32(o.first) < uint32(n.first)+uint32(n.count)
}

// validateShare returns an error that names every invalid field about shares.
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
	if c.overflow().overlaps(queueRange{c.Queue, c.Queues}) || c.ObserveQueue != 0 && c.overflow().overlaps(queueRange{c.ObserveQueue, 1}) {
		errs = append(errs, fmt.Errorf("OverflowQueue %d: one of its queues is one of the others", c.OverflowQueue))
	}
	return errors.Join(errs...)
}
