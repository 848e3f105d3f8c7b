package netns

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/lab"
)

// Protocol numbers.
const (
	protoTCP      = 6
	protoUDP      = 17
	protoFragment = 44
	protoNone     = 59
	protoDestOpts = 60
	protoAny      = 253 // for experiments
)

// ipv4 builds a packet; flags are the flags and the offset of fragments.
func ipv4(src, dst netip.Addr, proto byte, flags uint16, payload []byte) []byte {
	packet := make([]byte, 20, 20+len(payload))
	packet[0] = 4<<4 | 5
	binary.BigEndian.PutUint16(packet[4:], 0x4242) // identification
	binary.BigEndian.PutUint16(packet[6:], flags)
	packet[8], packet[9] = 64, proto
	copy(packet[12:], src.AsSlice())
	copy(packet[16:], dst.AsSlice())
	return append(packet, payload...)
}

// ipv6 builds a packet whose first header after the IPv6 header is next.
func ipv6(src, dst netip.Addr, next byte, payload []byte) []byte {
	packet := make([]byte, 40, 40+len(payload))
	packet[0] = 6 << 4
	binary.BigEndian.PutUint16(packet[4:], uint16(len(payload)))
	packet[6], packet[7] = next, 64
	copy(packet[8:], src.AsSlice())
	copy(packet[24:], dst.AsSlice())
	return append(packet, payload...)
}

// options builds a header of destination options of length bytes, a multiple of
// 8, before next. The options are of a type that receivers skip.
func options(length int, next byte, payload []byte) []byte {
	const experiment, longest = 0x1e, 240
	header := []byte{next, byte(length/8 - 1)}
	for left := length - 2; left > 0; {
		option := min(left, longest)
		if left-option == 1 { // no room for an option's own two bytes
			option--
		}
		header = append(header, experiment, byte(option-2))
		header = append(header, make([]byte, option-2)...)
		left -= option
	}
	return append(header, payload...)
}

// tcpSYN is a header that opens a connection from port to port 80.
func tcpSYN(port uint16) []byte {
	header := make([]byte, 20)
	binary.BigEndian.PutUint16(header[0:], port)
	binary.BigEndian.PutUint16(header[2:], 80)
	header[12], header[13] = 5<<4, 0x02
	return header
}

// udpTo is a datagram from port to port 80, without a checksum.
func udpTo(port uint16, payload []byte) []byte {
	header := make([]byte, 8)
	binary.BigEndian.PutUint16(header[0:], port)
	binary.BigEndian.PutUint16(header[2:], 80)
	binary.BigEndian.PutUint16(header[4:], uint16(8+len(payload)))
	return append(header, payload...)
}

// fragment6 puts payload behind a fragment header. The offset is in bytes.
func fragment6(next byte, offset uint16, more bool, payload []byte) []byte {
	header := make([]byte, 8)
	header[0] = next
	binary.BigEndian.PutUint16(header[2:], offset)
	if more {
		header[3] |= 1
	}
	binary.BigEndian.PutUint32(header[4:], 0x42424242)
	return append(header, payload...)
}

func random(seed uint64, length int) []byte {
	source := rand.New(rand.NewPCG(seed, 0))
	noise := make([]byte, length)
	for i := range noise {
		noise[i] = byte(source.Uint32())
	}
	return noise
}

// odd is traffic of one kind: packets that the agent sees as one.
type odd struct {
	name    string
	packets [][]byte
}

func one(name string, packet []byte) odd { return odd{name, [][]byte{packet}} }

// oddPackets are what an attacker may try, from src to dst of one family and from
// one port.
func oddPackets(src, dst netip.Addr, port uint16) []odd {
	if src.Is4() {
		simple := func(proto byte, payload []byte) []byte { return ipv4(src, dst, proto, 0, payload) }
		const more, second = 0x2000, 2 // flag; offset in units of 8 bytes
		return []odd{
			one("TCP without a header", simple(protoTCP, nil)),
			one("TCP with 4 bytes of header", simple(protoTCP, tcpSYN(port)[:4])),
			one("TCP with 12 bytes of header", simple(protoTCP, tcpSYN(port)[:12])),
			one("UDP without a header", simple(protoUDP, nil)),
			one("UDP with an empty payload", simple(protoUDP, udpTo(port, nil))),
			one("an empty payload", simple(protoAny, nil)),
			one("random bytes as TCP", simple(protoTCP, random(1, 64))),
			one("random bytes as UDP", simple(protoUDP, random(2, 64))),
			one("random bytes", simple(protoAny, random(3, 1000))),
			{"a first and a later fragment", [][]byte{
				ipv4(src, dst, protoUDP, more, udpTo(port, make([]byte, 16))[:16]),
				ipv4(src, dst, protoUDP, second, make([]byte, 8)),
			}},
		}
	}
	simple := func(next byte, payload []byte) []byte { return ipv6(src, dst, next, payload) }
	return []odd{
		one("TCP without a header", simple(protoTCP, nil)),
		one("TCP with 12 bytes of header", simple(protoTCP, tcpSYN(port)[:12])),
		one("96 bytes of options before TCP", simple(protoDestOpts, options(96, protoTCP, tcpSYN(port)))),
		one("200 bytes of options before TCP", simple(protoDestOpts, options(200, protoTCP, tcpSYN(port)))),
		one("1000 bytes of options before TCP", simple(protoDestOpts, options(1000, protoTCP, tcpSYN(port)))),
		one("no next header", simple(protoNone, nil)),
		one("UDP without a header", simple(protoUDP, nil)),
		one("random bytes as TCP", simple(protoTCP, random(4, 64))),
		one("random bytes", simple(protoAny, random(5, 1000))),
		{"a first and a later fragment", [][]byte{
			simple(protoFragment, fragment6(protoUDP, 0, true, udpTo(port, make([]byte, 16))[:16])),
			simple(protoFragment, fragment6(protoUDP, 16, false, make([]byte, 8))),
		}},
	}
}

// TestOddPackets sends packets that are hard to read. First, without a policy, to
// see that each arrives; then from a pod that is denied all but TCP port 443: none
// may arrive, each must be counted, and the agent goes on.
func TestOddPackets(t *testing.T) {
	c := newCluster(t, 1, "x/web@1 app=web", "y/web@1 app=web", "y/db@1 app=db")
	agent := c.start(t)[0]
	from, to := c.hosts["y/web"], c.hosts["x/web"]
	arrived, err := to.Capture(func(packet []byte) bool { return isFrom(packet, from) })
	if err != nil {
		t.Fatal(err)
	}
	send := func(t *testing.T, kind odd) {
		t.Helper()
		for _, packet := range kind.packets {
			if err := from.SendIP(packet); err != nil {
				t.Fatal(err)
			}
		}
	}
	each := func(name string, port uint16, test func(t *testing.T, kind odd)) {
		for _, family := range []lab.Family{lab.IPv4, lab.IPv6} {
			for _, kind := range oddPackets(from.Addr(family), to.Addr(family), port) {
				t.Run(fmt.Sprintf("%s/%s/%s", name, family, kind.name), func(t *testing.T) { test(t, kind) })
			}
		}
	}

	c.expect(t, yes("y/web", "x/web", "tcp/80"))
	each("open", 40000, func(t *testing.T, kind odd) {
		before := arrived.Count()
		send(t, kind)
		if err := c.within(t, func() bool { return arrived.Count() > before }); err != nil {
			t.Error("it does not arrive where nothing denies it, so nothing can be shown with it")
		}
	})

	c.apply(t, "policies", onlyDB+policy("x", "port", `
  podSelector: {matchLabels: {app: web}}
  ingress: [{ports: [{port: 443}]}]`))
	c.expect(t, no("y/web", "x/web", "tcp/80"), yes("y/db", "x/web", "tcp/80"))
	delivered := arrived.Count()
	// From another port, because the server has answered some of the first ones and
	// so established them.
	each("denied", 41000, func(t *testing.T, kind odd) {
		before := denied(metrics(t, agent))
		send(t, kind)
		if got := until(t, agent, before+1, denied); got != before+1 {
			t.Errorf("denied packets went from %v to %v, want one more", before, got)
		}
		if got := arrived.Count(); got != delivered {
			t.Errorf("%d packets were delivered", got-delivered)
		}
	})
	select {
	case <-agent.Ended():
		t.Fatal("the agent has ended")
	default:
	}
	c.expect(t, no("y/web", "x/web", "tcp/80"), yes("y/db", "x/web", "tcp/80"))
}

// TestALoneFragmentWaitsInVain sends only a first or only a later fragment: the
// kernel waits for the rest before it asks anyone, gives up, and counts that.
func TestALoneFragmentWaitsInVain(t *testing.T) {
	c := newCluster(t, 1, "x/web@1 app=web", "y/web@1 app=web", "y/db@1 app=db")
	node := c.Nodes[0]
	c.start(t)
	for _, key := range []string{"ipv4/ipfrag_time", "netfilter/nf_conntrack_frag6_timeout"} {
		if err := node.Set(key, "1"); err != nil {
			t.Fatal(err)
		}
	}
	from, to := c.hosts["y/web"], c.hosts["x/web"]
	arrived, err := to.Capture(func(packet []byte) bool { return isFrom(packet, from) })
	if err != nil {
		t.Fatal(err)
	}
	c.apply(t, "policies", onlyDB)
	c.expect(t, no("y/web", "x/web", "tcp/80"), yes("y/db", "x/web", "tcp/80"))

	before, sent := arrived.Count(), 0
	for _, family := range []lab.Family{lab.IPv4, lab.IPv6} {
		kinds := oddPackets(from.Addr(family), to.Addr(family), 40000)
		fragments := kinds[len(kinds)-1].packets
		for i, fragment := range fragments {
			fragment = bytes.Clone(fragment)
			if family == lab.IPv4 {
				fragment[5] = byte(i) // another packet's: they must not meet
			} else {
				fragment[40+7] = byte(i)
			}
			if err := from.SendIP(fragment); err != nil {
				t.Fatal(err)
			}
			sent++
		}
	}
	if err := c.within(t, func() bool { return reassemblyFailures(t, node) >= sent }); err != nil {
		t.Errorf("%d of %d fragments were given up", reassemblyFailures(t, node), sent)
	}
	if got := arrived.Count(); got != before {
		t.Errorf("%d fragments were delivered", got-before)
	}
	c.expect(t, no("y/web", "x/web", "tcp/80"), yes("y/db", "x/web", "tcp/80"))
}

// isFrom tells whether the packet is the host's own, not an error about one.
func isFrom(packet []byte, host *lab.Host) bool {
	switch {
	case len(packet) >= 20 && packet[0]>>4 == 4:
		return bytes.Equal(packet[12:16], host.Addr(lab.IPv4).AsSlice()) && packet[9] != 1
	case len(packet) >= 40 && packet[0]>>4 == 6:
		return bytes.Equal(packet[8:24], host.Addr(lab.IPv6).AsSlice()) && packet[6] != 58
	}
	return false
}
