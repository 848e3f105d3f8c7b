package domains

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/net/dns/dnsmessage"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// Addresses. The pod has two.
const (
	podAt   = "10.0.0.1"
	podAt6  = "fd00::1"
	otherAt = "10.0.0.2"
	dns     = "10.96.0.10:53"
)

const (
	typeA     = dnsmessage.TypeA
	typeAAAA  = dnsmessage.TypeAAAA
	typeHTTPS = dnsmessage.TypeHTTPS
)

// fixture is a Table that learns for both pods, and a clock.
type fixture struct {
	*Table
	t   testing.TB
	now time.Time
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	f := &fixture{t: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	var err error
	f.Table, err = New(Config{Now: func() time.Time { return f.now }, Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	f.keep(podAt+" pod", podAt6+" pod", otherAt+" other")
	return f
}

// keep takes "ADDRESS OWNER".
func (f *fixture) keep(owners ...string) {
	m := make(map[netip.Addr]string)
	for _, o := range owners {
		addr, owner, _ := strings.Cut(o, " ")
		m[ip(addr)] = owner
	}
	f.Keep(m)
}

// asks has the pod send a query for the addresses of a name, with ID 7 from port 4000.
func (f *fixture) asks(name string, kind dnsmessage.Type) {
	f.Observe(udp(podAt+":4000", dns, question(7, name, kind)))
}

// hears has the pod receive an answer to that query.
func (f *fixture) hears(name string, kind dnsmessage.Type, answers ...dnsmessage.Resource) {
	f.Observe(udp(dns, podAt+":4000", reply(7, name, kind, answers...)))
}

// learns has the pod send a query and receive its answer.
func (f *fixture) learns(name string, addrs ...dnsmessage.Resource) {
	kind := typeA
	if len(addrs) > 0 {
		kind = addrs[0].Header.Type
	}
	f.asks(name, kind)
	f.hears(name, kind, addrs...)
}

// knows returns the names by which the pod knows addr.
func (f *fixture) knows(addr string) string { return names(f.Names(ip(podAt), ip(addr))) }

func names(n *policy.Names) string {
	if n == nil {
		return ""
	}
	return strings.Join(*n, " ")
}

// expect fails unless the pod knows addr by names.
func (f *fixture) expect(addr, names string) {
	f.t.Helper()
	if got := f.knows(addr); got != names {
		f.t.Errorf("the pod knows %s as %q, want %q", addr, got, names)
	}
}

// answered fails unless exactly that number of answers had that result.
func (f *fixture) answered(r result, want int) {
	f.t.Helper()
	if got := testutil.ToFloat64(f.metrics.messages.WithLabelValues(string(r))); got != float64(want) {
		f.t.Errorf("%v answers are %s, want %d", got, r, want)
	}
}

func (f *fixture) evictions(kind string, want int) {
	f.t.Helper()
	if got := testutil.ToFloat64(f.metrics.evicted(kind)); got != float64(want) {
		f.t.Errorf("%v evictions of kind %s, want %d", got, kind, want)
	}
}

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

func named(s string) dnsmessage.Name { return dnsmessage.MustNewName(s + ".") }

func question(id uint16, name string, kind dnsmessage.Type) []byte {
	return pack(dnsmessage.Message{
		Header:    dnsmessage.Header{ID: id, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: named(name), Type: kind, Class: dnsmessage.ClassINET}},
	})
}

func reply(id uint16, name string, kind dnsmessage.Type, answers ...dnsmessage.Resource) []byte {
	return pack(dnsmessage.Message{
		Header:    dnsmessage.Header{ID: id, Response: true, RecursionAvailable: true},
		Questions: []dnsmessage.Question{{Name: named(name), Type: kind, Class: dnsmessage.ClassINET}},
		Answers:   answers,
	})
}

func pack(m dnsmessage.Message) []byte {
	b, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return b
}

// at is a record of type A or AAAA, whatever the address is.
func at(name, addr string, ttl uint32) dnsmessage.Resource {
	r := dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: named(name), Class: dnsmessage.ClassINET, TTL: ttl}}
	if a := ip(addr); a.Is4() {
		r.Header.Type, r.Body = typeA, &dnsmessage.AResource{A: a.As4()}
	} else {
		r.Header.Type, r.Body = typeAAAA, &dnsmessage.AAAAResource{AAAA: a.As16()}
	}
	return r
}

func cname(name, target string, ttl uint32) dnsmessage.Resource {
	return dnsmessage.Resource{
		Header: dnsmessage.ResourceHeader{Name: named(name), Type: dnsmessage.TypeCNAME, Class: dnsmessage.ClassINET, TTL: ttl},
		Body:   &dnsmessage.CNAMEResource{CNAME: named(target)},
	}
}

// odd is a record of a type, with data of n bytes.
func odd(name string, kind dnsmessage.Type, n int) dnsmessage.Resource {
	return dnsmessage.Resource{
		Header: dnsmessage.ResourceHeader{Name: named(name), Type: kind, Class: dnsmessage.ClassINET, TTL: 300},
		Body:   &dnsmessage.UnknownResource{Type: kind, Data: make([]byte, n)},
	}
}

func udp(src, dst string, payload []byte) []byte {
	s, d := netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst)
	b := make([]byte, 8, 8+len(payload))
	binary.BigEndian.PutUint16(b[0:], s.Port())
	binary.BigEndian.PutUint16(b[2:], d.Port())
	binary.BigEndian.PutUint16(b[4:], uint16(8+len(payload)))
	return ipPacket(s.Addr(), d.Addr(), packet.UDP, append(b, payload...))
}

// tcp builds a segment; syn opens a connection.
func tcp(src, dst string, seq uint32, syn bool, payload []byte) []byte {
	s, d := netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst)
	b := make([]byte, 20, 20+len(payload))
	binary.BigEndian.PutUint16(b[0:], s.Port())
	binary.BigEndian.PutUint16(b[2:], d.Port())
	binary.BigEndian.PutUint32(b[4:], seq)
	b[12], b[13] = 5<<4, 0x10
	if syn {
		b[13] |= 0x02
	}
	return ipPacket(s.Addr(), d.Addr(), packet.TCP, append(b, payload...))
}

func ipPacket(src, dst netip.Addr, proto packet.Proto, payload []byte) []byte {
	if src.Is4() {
		b := make([]byte, 20, 20+len(payload))
		b[0], b[8], b[9] = 4<<4|5, 64, byte(proto)
		binary.BigEndian.PutUint16(b[2:], uint16(20+len(payload)))
		copy(b[12:], src.AsSlice())
		copy(b[16:], dst.AsSlice())
		return append(b, payload...)
	}
	b := make([]byte, 40, 40+len(payload))
	b[0], b[6], b[7] = 6<<4, byte(proto), 64
	binary.BigEndian.PutUint16(b[4:], uint16(len(payload)))
	copy(b[8:], src.AsSlice())
	copy(b[24:], dst.AsSlice())
	return append(b, payload...)
}
