package domains

import (
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// seeds are answers to the query of the fuzz targets.
func seeds() [][]byte {
	const name = "api.example.test"
	return [][]byte{
		nil,
		reply(7, name, typeA, at(name, "192.0.2.1", 300), at(name, "192.0.2.2", 0)),
		reply(7, name, typeA, cname(name, "b.test", 300), at("b.test", "192.0.2.1", 300)),
		reply(7, name, typeAAAA, at(name, "2001:db8::1", 300)),
		question(7, name, typeA),
		pack(dnsmessage.Message{Header: dnsmessage.Header{ID: 7, Response: true, Truncated: true}}),
	}
}

// asked returns a fixture after the pod has sent the query by UDP and by TCP.
func asked(t *testing.T) *fixture {
	const name = "api.example.test"
	f := newFixture(t)
	f.asks(name, typeA)
	f.asks(name, typeAAAA)
	f.Observe(tcp(podAt+":4000", dns, 0, true, prefixed(question(7, name, typeA), question(7, name, typeAAAA))))
	f.Observe(tcp(dns, podAt+":4000", 0, true, nil))
	return f
}

// unharmed fails if a name was learned that was not in a query.
func (f *fixture) unharmed() {
	f.t.Helper()
	if f.addresses() > MaxAddresses {
		f.t.Fatalf("%d addresses are held", f.addresses())
	}
	for _, p := range *f.pods.Load() {
		for text := range p.known.names {
			if text != "api.example.test" {
				f.t.Fatalf("a pod knows something as %q", text)
			}
		}
	}
	if got := f.Names(ip(otherAt), ip("192.0.2.1")); got != nil {
		f.t.Fatalf("the other pod knows an address as %v", *got)
	}
}

func FuzzAnswer(f *testing.F) {
	for _, b := range seeds() {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<16-100 {
			return // too long for a datagram
		}
		table := asked(t)
		table.Observe(udp(dns, podAt+":4000", b))
		table.Observe(tcp(dns, podAt+":4000", 1, false, prefixed(b)))
		table.unharmed()
	})
}

func FuzzObserve(f *testing.F) {
	for _, b := range seeds() {
		f.Add(udp(dns, podAt+":4000", b))
		f.Add(udp(podAt+":4000", dns, b))
		f.Add(tcp(dns, podAt+":4000", 1, false, prefixed(b)))
	}
	f.Add(udp("[fd00::10]:53", "["+podAt6+"]:4000", seeds()[1]))
	f.Fuzz(func(t *testing.T, b []byte) {
		table := asked(t)
		table.Observe(b)
		table.Observe(b)
		table.unharmed()
	})
}

// FuzzName has names as messages may contain them, and checks that policies cannot
// confuse them with other names.
func FuzzName(f *testing.F) {
	f.Add("api.example.test.")
	f.Add("A.b.")
	f.Add(".")
	f.Fuzz(func(t *testing.T, s string) {
		n, err := dnsmessage.NewName(s)
		if err != nil {
			return
		}
		fold(&n)
		if got := string(text(&n)); strings.ContainsAny(got, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") || !strings.EqualFold(strings.TrimSuffix(s, "."), got) {
			t.Fatalf("%q became %q", s, got)
		}
	})
}
