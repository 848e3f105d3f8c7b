package netns

import (
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// Policies that deny ingress to x and egress from z.
var (
	noneToX   = labtest.Policy("x", "none", `{podSelector: {}, policyTypes: [Ingress]}`)
	noneFromZ = labtest.Policy("z", "none", `{podSelector: {}, policyTypes: [Egress]}`)
)

// segment returns what Capture matches: TCP segments with these flags and no other ones.
func segment(flags byte) func(packet []byte) bool {
	return func(packet []byte) bool {
		header := 40
		if packet[0]>>4 == 4 {
			header = int(packet[0]&15) * 4
		}
		return len(packet) >= header+20 && (packet[0]>>4 == 4 && packet[9] == labtest.ProtoTCP || packet[0]>>4 == 6 && packet[6] == labtest.ProtoTCP) &&
			packet[header+13]&0x3f == flags
	}
}

// TCP flags.
const (
	syn      = 0x02
	resetAck = 0x14
)

// TestDeniedConnectionsAreRefused (DN-1) opens connections that ingress or egress policies deny, over both
// families, on one node and across nodes. Each client sends one SYN and hears "connection refused", also
// when the kernel has remembered the denial.
func TestDeniedConnectionsAreRefused(t *testing.T) {
	c := newCluster(t, 2, "x/web@1 app=web", "y/near@1", "y/far@2", "z/out@1")
	vips := c.service(t, c.Pods["x/web"])
	agent := c.Start(t, "--deny=reject")[0]
	c.Apply(t, "policies", noneToX+noneFromZ+labtest.Policy("y", "all", `{podSelector: {}, ingress: [{}]}`))
	awaitRemembering(t, c, agent, "x/web", "y/near")
	c.Expect(t,
		labtest.Refused("y/near", "x/web", "tcp/80"), labtest.Refused("y/far", "x/web", "tcp/80"), labtest.Refused("z/out", "y/far", "tcp/80"),
		labtest.Refused("y/near", "x/web", "udp/80"), labtest.Refused("y/far", "x/web", "udp/80"), labtest.Refused("z/out", "y/far", "udp/80"),
		labtest.Yes("x/web", "y/near", "tcp/80"), labtest.Yes("y/far", "z/out", "tcp/80"), labtest.Yes("node-1", "x/web", "tcp/80"))

	sent, err := c.Hosts["node-1"].Capture(func(packet []byte) bool {
		return segment(syn)(packet) && packet[12] != 127 // the test reads metrics on the loopback interface
	})
	if err != nil {
		t.Fatal(err)
	}
	tries := 0
	connect := func(from string, to netip.AddrPort) {
		t.Helper()
		tries++
		conn, err := c.Hosts[from].Dial(t.Context(), lab.TCP, to)
		if err == nil {
			conn.Close()
		}
		if !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%s to %s: %v, want connection refused", from, to, err)
		}
	}
	awaitMetric := func(name string) {
		t.Helper()
		if err := labtest.Within(t, func() bool { return labtest.Metrics(t, agent).Sum(name, "verdict", "drop") > 0 }); err != nil {
			t.Errorf("%s is 0: %v", name, err)
		}
	}
	round := func() {
		t.Helper()
		for _, addr := range c.Addrs(t, "x/web") {
			connect("y/near", netip.AddrPortFrom(addr, 80))
			connect("y/far", netip.AddrPortFrom(addr, 80))
		}
		for _, addr := range c.Addrs(t, "y/far") {
			connect("z/out", netip.AddrPortFrom(addr, 80))
		}
		for _, vip := range vips {
			connect("y/near", vip)
		}
	}
	for range 6 {
		round()
	}
	awaitMetric("netpol_remembered_verdicts") // the kernel denies these classes by itself
	for range 3 {
		round()
	}
	awaitMetric("netpol_remembered_packets_total")

	if err := labtest.Within(t, func() bool { return sent.Count() >= tries }); err != nil {
		t.Errorf("%d SYNs for %d refused connections", sent.Count(), tries)
	}
	// Clients that get no answer to the first SYN would send twice as many. A busy machine may delay some
	// answers by the second after which they repeat it.
	if got := sent.Count(); got >= 2*tries {
		t.Errorf("%d SYNs for %d refused connections, want one for each", got, tries)
	}
	t.Logf("%d SYNs for %d refused connections", sent.Count(), tries)
}

// TestBlockedConnectionsAreReset (DN-3): the ends of an established connection learn that a new policy denies it.
func TestBlockedConnectionsAreReset(t *testing.T) {
	c := newCluster(t, 2, "x/web@1 app=web", "y/near@1", "y/far@2")
	vips := c.service(t, c.Pods["x/web"])
	c.Apply(t, "policies", fromY)
	agent := c.Start(t, "--deny=reject")[0]
	c.Expect(t, labtest.Yes("y/far", "x/web", "tcp/80"))
	waitForPasses(t, agent, 2) // these passes do not find the change below
	all := c.establish(t, vips)
	all.goOn(t, "allowed")

	before := labtest.Metrics(t, agent).Sum("netpol_conntrack_blocked_total")
	c.Replace(t, "policies", noIngress)
	waitForBlocked(t, agent, before+float64(len(all.denied)+1))
	each(all.denied, func(p pair) {
		for side, end := range map[string]io.ReadWriter{"client": p.client, "server": p.server} {
			p.client.SetDeadline(time.Now().Add(labtest.ChangeTimeout))
			p.server.SetDeadline(time.Now().Add(labtest.ChangeTimeout))
			_, err := io.WriteString(end, "blocked")
			if err == nil {
				_, err = end.Read(make([]byte, 16))
			}
			if !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("%s: the %s gets %v, want a reset", p.name, side, err)
			}
		}
	})
	each(all.spared, func(p pair) {
		p.send(t, "spared")
		p.received(t, "spared", labtest.ChangeTimeout)
	})
	if err := labtest.Within(t, func() bool {
		_, err := io.WriteString(all.flow, "blocked")
		return errors.Is(err, unix.EHOSTUNREACH)
	}); err != nil {
		t.Errorf("the sender of blocked datagrams gets no error: %v", err)
	}
}

// synTo returns an IP packet with a SYN from a port to port 80.
func synTo(src, dst netip.Addr, port uint16) []byte {
	header := labtest.TCPSYN(port)
	pseudo := append(append(src.AsSlice(), dst.AsSlice()...), 0, 0, 0, 20, 0, 0, 0, labtest.ProtoTCP)
	var sum uint32
	for b := append(pseudo, header...); len(b) > 0; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(header[16:], ^uint16(sum))
	if src.Is4() {
		return labtest.IPv4(src, dst, labtest.ProtoTCP, 0, header)
	}
	return labtest.IPv6(src, dst, labtest.ProtoTCP, header)
}

// TestForgedSourcesGetNoAnswer (DN-4): no pod can have resets sent to another one, even without the check of
// sources.
func TestForgedSourcesGetNoAnswer(t *testing.T) {
	c := newCluster(t, 1, "x/web@1 app=web", "y/victim@1", "y/eve@1")
	agent := c.Start(t, "--deny=reject", "--source-check-exempt=*")[0]
	c.Apply(t, "policies", noneToX)
	c.Expect(t, labtest.Refused("y/eve", "x/web", "tcp/80"))
	resets, err := c.Hosts["y/victim"].Capture(segment(resetAck))
	if err != nil {
		t.Fatal(err)
	}
	own, err := c.Hosts["y/eve"].Capture(segment(resetAck))
	if err != nil {
		t.Fatal(err)
	}
	before := labtest.Denied(labtest.Metrics(t, agent))
	sent := 0.0
	for i, dst := range c.Pods["x/web"].Addrs {
		for port := range uint16(20) {
			for _, from := range []string{"y/victim", "y/eve"} {
				src := c.Pods[from].Addrs[i]
				if err := c.Hosts["y/eve"].SendIP(synTo(src, dst, 30000+port)); err != nil {
					t.Fatal(err)
				}
				sent++
			}
		}
	}
	labtest.Until(t, agent, before+sent, labtest.Denied)

	if err := labtest.Within(t, func() bool { return own.Count() > 0 }); err != nil {
		t.Errorf("no reset for packets with the pod's own source: %v", err)
	}
	if got := resets.Count(); got != 0 {
		t.Errorf("%d resets for packets that the pod has not sent, want none", got)
	}
}

// TestAnswersAreLimited (DN-5) sends far more SYNs than are answered: 100 at once and 100 a second.
func TestAnswersAreLimited(t *testing.T) {
	c := newCluster(t, 1, "x/web@1 app=web", "y/eve@1", "y/other@1")
	agent := c.Start(t, "--deny=reject")[0]
	c.Apply(t, "policies", noneToX)
	c.Expect(t, labtest.Refused("y/eve", "x/web", "tcp/80"))
	resets, err := c.Hosts["y/eve"].Capture(segment(resetAck))
	if err != nil {
		t.Fatal(err)
	}
	const count = 5000
	before := labtest.Denied(labtest.Metrics(t, agent))
	eve, web := c.Pods["y/eve"].Addr(lab.IPv4), c.Pods["x/web"].Addr(lab.IPv4)
	begun := time.Now()
	for i := range count {
		if err := c.Hosts["y/eve"].SendIP(synTo(eve, web, uint16(20000+i))); err != nil {
			t.Fatal(err)
		}
	}
	labtest.Until(t, agent, before+1, labtest.Denied)

	if err := labtest.Within(t, func() bool { return resets.Count() > 0 }); err != nil {
		t.Errorf("no reset: %v", err)
	}
	c.Expect(t, labtest.Refused("y/other", "x/web", "tcp/80")) // has its own limit
	got := resets.Count()
	// 100 at once and 100 each second (DN-5), however long the SYNs have taken.
	if most := 100 * (2 + int(time.Since(begun)/time.Second)); got > most {
		t.Errorf("%d resets for %d SYNs, want at most %d", got, count, most)
	}
	t.Logf("%d resets for %d SYNs", got, count)
}
