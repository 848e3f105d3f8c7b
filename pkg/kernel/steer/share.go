package steer

import (
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft/rule"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/queuenum"
)

// A share is the number of packets per second of one local pod that go to the first queues. The pod
// is their source or, for packets from elsewhere, their destination. Packets that exceed the share go
// to the overflow queues. So a pod that floods does not delay first packets of other pods, and still
// gets the capacity that they leave.
//
// Only packets of known pods have a share. So the sets never have more elements than the node has
// pods, whatever addresses a sender forges.
const (
	shareChain    = "share"
	sentChain     = "sent" // for packets of known pods
	overflowChain = "overflow"

	sentSet     = "sent"     // pods as sources
	receivedSet = "received" // pods as destinations

	// shareSize is above the number of pods of any node.
	shareSize = 1 << 16
	// shareTimeout removes an unused element, whose share is full again by then.
	shareTimeout = time.Minute
	// shareBurst is the divisor for the burst: a quarter of a second's share may come at once.
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

// shareSets are the sets for shares. Packets update their elements; the agent does not write them.
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

func shareChains(cfg Config) []chain {
	return []chain{
		{name: overflowChain, rules: cfg.queueRules(cfg.overflow())},
		{name: sentChain, rules: sentRules(cfg)},
		{name: shareChain, rules: shareRules(cfg)},
	}
}

// shareRules send packets within a share to divertChain. The source is charged first, so that a
// flooding pod does not use up the shares of its destinations.
func shareRules(cfg Config) []rule.Rule {
	var rules []rule.Rule
	for _, f := range families {
		rules = append(rules,
			rule.Rule{f.Saddr.In(f.set(podsSet)), rule.Goto(sentChain)},
			rule.Rule{f.Daddr.In(f.set(podsSet))}.And(cfg.withinShare(f.set(receivedSet), f.Daddr)...))
	}
	return append(rules, rule.Rule{rule.Goto(overflowChain)})
}

func sentRules(cfg Config) []rule.Rule {
	within := forFamilies(func(f family) rule.Rule { return cfg.withinShare(f.set(sentSet), f.Saddr) })
	return append(within, rule.Rule{rule.Goto(overflowChain)})
}

// withinShare charges a packet to the share in set of its source or destination address, and sends it to
// divertChain if it is within the share. If the set is full or memory is short, the update fails and the
// packet counts as exceeding its share.
func (c Config) withinShare(set string, address rule.Field) rule.Rule {
	return rule.Rule{rule.Update{Set: set, Key: rule.Key{address}, PerSecond: c.Share, Burst: max(1, c.Share/shareBurst)}, rule.Goto(divertChain)}
}

func (c Config) deciding() queuenum.Range { return queuenum.Range{First: c.Queue, Count: c.Queues} }

func (c Config) overflow() queuenum.Range {
	return queuenum.Range{First: c.OverflowQueue, Count: c.Queues}
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
	if last := c.overflow().Last(); last > 0xffff {
		errs = append(errs, fmt.Errorf("OverflowQueue: the last queue would be %d, above 65535", last))
	}
	if c.overflow().Overlaps(c.deciding()) || c.ObserveQueue != 0 && c.overflow().Contains(c.ObserveQueue) {
		errs = append(errs, fmt.Errorf("OverflowQueue %d: the range overlaps other queues", c.OverflowQueue))
	}
	return errors.Join(errs...)
}
