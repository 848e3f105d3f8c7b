package main

import (
	"net/netip"
	"testing"
)

// The draws of the mixture are the same in every run and have the shares of the model.
// "seen" are classes that were drawn before: the maximum that a cache can answer.
func TestMixture(t *testing.T) {
	const draws = 10000
	kinds, seen := make(map[string]int), make(map[netip.Addr]bool)
	c := newClasses()
	for range draws {
		next := c.next
		addr := c.mixed()
		switch n := c.next - next; {
		case n > 0:
			kinds["crawler"]++
		case addr.Compare(class(firstOther)) < 0:
			kinds["dns"]++
		default:
			kinds["service"]++
		}
		if seen[addr] {
			kinds["seen"]++
		}
		seen[addr] = true
	}
	t.Log(kinds)
	for kind, percent := range map[string]int{"service": serviceShare, "dns": dnsShare, "crawler": 100 - serviceShare - dnsShare} {
		if got := kinds[kind]; got < draws*(percent-1)/100 || got > draws*(percent+1)/100 {
			t.Errorf("%d draws of %s, want about %d %%", got, kind, percent)
		}
	}
	first, second := newClasses(), newClasses()
	for i := range draws {
		if a, b := first.mixed(), second.mixed(); a != b {
			t.Fatalf("draw %d differs between runs: %s and %s", i, a, b)
		}
	}
}

// The kinds of classes do not overlap, all are allowed, and unknown ones repeat only after
// all others were drawn.
func TestClassesAreApart(t *testing.T) {
	c := newClasses()
	seen := map[netip.Addr]bool{c.known(): true}
	for i := firstDNS; i < firstNew; i++ {
		seen[class(i)] = true
	}
	for range lastNew - firstNew + 1 {
		addr := c.unknown()
		if seen[addr] || !allowed.Contains(addr) {
			t.Fatalf("%s seen before: %v", addr, seen[addr])
		}
		seen[addr] = true
	}

	if addr := c.unknown(); addr != class(firstNew) {
		t.Errorf("after all of them %s is drawn, want the first", addr)
	}
	if allowed.Contains(c.denied()) {
		t.Errorf("%s is allowed", c.denied())
	}
}
