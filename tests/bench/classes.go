package main

import (
	"math/rand/v2"
	"net/netip"

	"sigs.k8s.io/kube-network-policies/tests/bench/cluster"
)

// A class is what a verdict depends on: source address, destination address, protocol
// and destination port. Here each destination address makes a class.
var (
	// allowed are the destinations that policies allow.
	allowed = netip.MustParsePrefix("198.18.0.0/15")
	// denied is a destination that they deny.
	denied = netip.MustParseAddr("203.0.113.1")
)

// The mixture is a model of where the pods of a node connect to. It is an assumption, and
// no record of a cluster.
const (
	// serviceShare of 100 connections go to pods behind Services. Which ones is drawn by
	// Zipf's law: class k of serviceClasses has a probability of 1/(k+1)^serviceZipf.
	serviceShare   = 60
	serviceClasses = 1000
	serviceZipf    = 1.2

	// dnsShare of 100 go to one of dnsClasses resolvers.
	dnsShare   = 35
	dnsClasses = 2

	// The others are those of crawlers: every one to a class that was never used before.
)

// The destinations, by their place in allowed.
const (
	knownClass = 0
	firstDNS   = 1
	firstOther = firstDNS + dnsClasses
	firstNew   = firstOther + serviceClasses
	lastNew    = 1<<17 - 1
)

// classes draws destinations. The zero value is not ready, see newClasses.
type classes struct {
	random *rand.Rand
	zipf   *rand.Zipf
	next   int // new class
}

// newClasses returns classes whose draws are the same in every run.
func newClasses() *classes {
	random := rand.New(rand.NewPCG(16, 7))
	return &classes{
		random: random,
		zipf:   rand.NewZipf(random, serviceZipf, 1, serviceClasses-1),
		next:   firstNew,
	}
}

// known is always the same class.
func (c *classes) known() netip.Addr { return class(knownClass) }

// unknown is a class that was not drawn before, as long as there are some: 130,000.
func (c *classes) unknown() netip.Addr {
	addr := class(c.next)
	if c.next++; c.next > lastNew {
		c.next = firstNew
	}
	return addr
}

// mixed is drawn from the mixture.
func (c *classes) mixed() netip.Addr {
	switch share := c.random.IntN(100); {
	case share < serviceShare:
		return class(firstOther + int(c.zipf.Uint64()))
	case share < serviceShare+dnsShare:
		return class(firstDNS + c.random.IntN(dnsClasses))
	default:
		return c.unknown()
	}
}

func (c *classes) denied() netip.Addr { return denied }

func class(i int) netip.Addr {
	a := allowed.Addr().As4()
	return netip.AddrFrom4([4]byte{a[0], a[1] + byte(i>>16), byte(i >> 8), byte(i)})
}

// tcp and udp turn what draws an address into what draws a destination.
func tcp(draw func() netip.Addr) func() netip.AddrPort { return to(draw, cluster.Port) }
func udp(draw func() netip.Addr) func() netip.AddrPort { return to(draw, udpPort) }

func to(draw func() netip.Addr, port uint16) func() netip.AddrPort {
	return func() netip.AddrPort { return netip.AddrPortFrom(draw(), port) }
}
