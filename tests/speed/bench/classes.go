package main

import (
	"math/rand/v2"
	"net/netip"

	"sigs.k8s.io/kube-network-policies/tests/speed/bench/cluster"
)

// A class is everything on which a verdict depends: source address, destination address,
// protocol and destination port. Here each destination address is a class.
var (
	// allowed are the destinations that policies allow.
	allowed = netip.MustParsePrefix("198.18.0.0/15")
	// denied is a destination that policies deny.
	denied = netip.MustParseAddr("203.0.113.1")
)

// The mixture models where the pods of a node connect to. It is an assumption, not measured
// in a cluster.
const (
	// serviceShare of 100 connections go to pods behind Services. They are drawn by Zipf's
	// law: class k of serviceClasses has a probability proportional to 1/(k+1)^serviceZipf.
	serviceShare   = 60
	serviceClasses = 1000
	serviceZipf    = 1.2

	// dnsShare of 100 connections go to one of dnsClasses resolvers.
	dnsShare   = 35
	dnsClasses = 2

	// The remaining ones are those of crawlers, each to a new class.
)

// The destinations, as indexes in allowed.
const (
	knownClass = 0
	firstDNS   = 1
	firstOther = firstDNS + dnsClasses
	firstNew   = firstOther + serviceClasses
	lastNew    = 1<<17 - 1
)

// classes draws destinations. Use newClasses: the zero value is not ready.
type classes struct {
	random *rand.Rand
	zipf   *rand.Zipf
	next   int // index of the next new class
}

// newClasses returns classes with the same draws in every run.
func newClasses() *classes {
	random := rand.New(rand.NewPCG(16, 7))
	return &classes{
		random: random,
		zipf:   rand.NewZipf(random, serviceZipf, 1, serviceClasses-1),
		next:   firstNew,
	}
}

// known returns the same class each time.
func (c *classes) known() netip.Addr { return class(knownClass) }

// unknown returns a class that was not drawn before, as long as there are some: 130,000.
func (c *classes) unknown() netip.Addr {
	addr := class(c.next)
	c.next++
	if c.next > lastNew {
		c.next = firstNew
	}
	return addr
}

// mixed draws from the mixture.
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

// tcp and udp turn a function that draws addresses into one that draws destinations.
func tcp(draw func() netip.Addr) func() netip.AddrPort { return to(draw, cluster.Port) }
func udp(draw func() netip.Addr) func() netip.AddrPort { return to(draw, udpPort) }

func to(draw func() netip.Addr, port uint16) func() netip.AddrPort {
	return func() netip.AddrPort { return netip.AddrPortFrom(draw(), port) }
}
