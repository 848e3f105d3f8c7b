package steer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft/rule"
)

// The kernel may track very many connections of a stale address, and their removal takes a while. Until
// then, packets of the address are decided as if these did not exist: each one is a first packet, unless
// the agent has accepted one of its connection since the address became stale.
const (
	predecessorChain      = "predecessor"       // at postrouting
	predecessorInputChain = "predecessor-input" // at input
	firstChain            = "first"             // decides a packet as a first one
	toHostChain           = "to-host"           // the same at input
	renewChain            = "renew"             // records the connection of an accepted packet

	renewedSet = "renewed"

	// renewedFor is far above the time that a removal takes. After it, packets are first ones again.
	renewedFor = overrideTimeout
)

// renewedSets are updated by packets. The agent only removes elements.
func renewedSets() []*knftables.Set { return connectionSets(renewedSet, allowedSize) }

// renewChains precede the chains that accept packets of the own node.
func renewChains() []chain {
	record := []rule.Rule{
		{replying, rule.Return},
		{related, anyICMP, rule.Return},
	}
	for _, f := range families {
		for _, end := range f.addresses() {
			record = append(record, rule.Rule{end.In(f.set(staleSet)), f.record(renewedSet, renewedFor)})
		}
	}
	return []chain{{name: renewChain, rules: record}}
}

// predecessorChains follow selectChain and toHostChain.
func predecessorChains() []chain {
	return []chain{
		{name: firstChain, rules: []rule.Rule{{rule.Jump(selectChain)}, {rule.Drop}}}, // selectChain has both directions of stale addresses
		{name: predecessorChain, rules: predecessorRules(firstChain)},
		{name: predecessorInputChain, rules: predecessorRules(toHostChain)},
	}
}

// predecessorRules send packets of stale addresses to chain unless they are of a renewed connection.
func predecessorRules(chain string) []rule.Rule {
	var rules []rule.Rule
	for _, f := range families {
		rules = append(rules,
			rule.Rule{f.ends().In(f.set(renewedSet)), rule.Return},
			rule.Rule{f.endsOfReply().In(f.set(renewedSet)), rule.Return},
			rule.Rule{f.Saddr.In(f.set(staleSet)), rule.Goto(chain)},
			rule.Rule{f.Daddr.In(f.set(staleSet)), rule.Goto(chain)})
	}
	return rules
}

// ofStale matches packets of a family with a stale address.
var ofStale = rule.NFProto.In(staleFamiliesSet)

// renewedKey is an element of the sets of renewed connections.
type renewedKey struct {
	ipv6 bool
	key  string // as the kernel has it
}

func (k renewedKey) set() string { return familyName(renewedSet, k.ipv6) }

func (k renewedKey) appendTo(b []byte) []byte { return append(b, k.key...) }

// opened returns the packet that has opened the connection.
func (k renewedKey) opened() (p packet.Packet, ok bool) {
	n := 4
	if k.ipv6 {
		n = 16
	}
	if len(k.key) != 2*n+12 {
		return p, false
	}
	b := []byte(k.key)
	src, _ := netip.AddrFromSlice(b[:n])
	dst, _ := netip.AddrFromSlice(b[n : 2*n])
	p.Proto = packet.Proto(b[2*n])
	p.Src = netip.AddrPortFrom(src, binary.BigEndian.Uint16(b[2*n+4:]))
	p.Dst = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(b[2*n+8:]))
	return p, true
}

// Renewed returns the packets that have opened the connections of stale addresses of which a packet was
// accepted since. It returns an error if another agent holds the table, or if the table is not in place
// yet.
func (s *Steerer) Renewed(ctx context.Context) (map[packet.Packet]struct{}, error) {
	opened := make(map[packet.Packet]struct{})
	err := s.inUse()
	if err == nil {
		err = s.verdicts.renewed(ctx, func(k renewedKey) {
			if p, ok := k.opened(); ok {
				opened[p] = struct{}{}
			}
		})
	}
	if err != nil {
		return nil, fmt.Errorf("list renewed connections: %w", err)
	}
	return opened, nil
}

// ForgetRenewed makes packets of addrs first ones again. It fails like Renewed.
func (s *Steerer) ForgetRenewed(ctx context.Context, addrs []netip.Addr) error {
	return s.locked(ctx, "forget renewed connections", func() error { return s.forgetRenewed(ctx, addrs) })
}

// maxForgetListings bounds the listings of forgetRenewed.
const maxForgetListings = 10

// forgetRenewed lists the elements until it finds none: a listing misses some while the kernel resizes the
// set.
func (s *Steerer) forgetRenewed(ctx context.Context, addrs []netip.Addr) error {
	if err := s.inUse(); err != nil {
		return err
	}
	for range maxForgetListings {
		var keys []elementKey
		err := s.verdicts.renewed(ctx, func(k renewedKey) {
			p, _ := k.opened()
			if slices.Contains(addrs, p.Src.Addr()) || slices.Contains(addrs, p.Dst.Addr()) {
				keys = append(keys, k)
			}
		})
		if err != nil || len(keys) == 0 {
			return err
		}
		if err := s.verdicts.remove(ctx, keys); err != nil {
			return err
		}
	}
	return errors.New("elements remain in the sets")
}
