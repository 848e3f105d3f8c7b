package netns

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// finish makes the node track count UDP connections of pod from, which have ended: those of a client of one
// DNS server, or of a crawler.
func (c *cluster) finish(t *testing.T, from netip.Addr, count int, crawler bool) {
	t.Helper()
	var lines strings.Builder
	for i := range count {
		to, port := "192.0.2.53", 1024+i%60000
		if from.Is6() {
			to = "2001:db8:53::53"
		}
		server := netip.MustParseAddr(to).AsSlice()
		server[len(server)-2] = byte(i / 60000)
		if crawler {
			server[len(server)-3], server[len(server)-2], server[len(server)-1] = byte(i>>16), byte(i>>8), byte(i)
		}
		dst, _ := netip.AddrFromSlice(server)
		fmt.Fprintf(&lines, "-A -t 600 -u SEEN_REPLY -s %s -d %s -r %[2]s -q %[1]s -p udp --sport %[3]d --dport 53 --reply-port-src 53 --reply-port-dst %[3]d\n", from, dst, port)
	}
	if out, err := c.Nodes[0].Run(t.Context(), lines.String(), "conntrack", "-R", "-"); err != nil {
		t.Fatalf("%v: %.200s", err, out)
	}
}

// stream is a flow of datagrams in one direction.
type stream struct {
	last    atomic.Int64  // when the last one arrived
	arrived chan struct{} // has an element if one has arrived
}

// stream sends a datagram every millisecond until the test ends.
func (c *cluster) stream(t *testing.T, from, to string, addr netip.Addr) *stream {
	t.Helper()
	s := &stream{arrived: make(chan struct{}, 1)}
	sink, err := c.Hosts[to].ListenPacket(netip.AddrPortFrom(addr, flowPort))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := c.Hosts[from].Dial(t.Context(), lab.UDP, netip.AddrPortFrom(addr, flowPort))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); conn.Close(); sink.Close() })
	go func() {
		for ; ctx.Err() == nil; time.Sleep(time.Millisecond) {
			_, _ = conn.Write([]byte("stream"))
		}
	}()
	go func() {
		b := make([]byte, 16)
		for {
			if _, err := sink.Read(b); err != nil {
				return
			}
			s.last.Store(time.Now().UnixNano())
			select {
			case s.arrived <- struct{}{}:
			default:
			}
		}
	}()
	return s
}

// waitFor waits until datagrams arrive again, or until none does for stallTime, and returns when the last one
// arrived.
func (s *stream) waitFor(t *testing.T, flows bool) time.Time {
	t.Helper()
	const enough = 20
	timeout := time.After(labtest.ChangeTimeout)
	for n := 0; !flows || n < enough; {
		select {
		case <-s.arrived:
			n++
		case <-time.After(stallTime):
			if !flows {
				return time.Unix(0, s.last.Load())
			}
		case <-timeout:
			t.Fatalf("after %v the stream flows: %v", labtest.ChangeTimeout, !flows)
		}
	}
	return time.Unix(0, s.last.Load())
}

// A pod with very many finished connections has a live one, which does not go on after a Deny, and goes on
// once it is allowed again.
func TestADenyBesideManyFinishedConnections(t *testing.T) {
	labtest.SkipShort(t)
	counts := []int{0, 6000}
	if os.Getenv("HARD") != "" {
		counts = []int{0, 60_000, 250_000}
	}
	closed := labtest.Policy("x", "egress", `{podSelector: {}, policyTypes: [Egress]}`)
	allowed := labtest.Policy("x", "egress", `{podSelector: {}, policyTypes: [Egress], egress: [{}]}`)
	some := labtest.Policy("x", "egress", `{podSelector: {}, policyTypes: [Egress], egress: [{ports: [{protocol: TCP, port: 443}]}]}`)
	for _, count := range counts {
		for _, crawler := range []bool{false, true} {
			for family := range 2 {
				t.Run(fmt.Sprintf("%d entries, of a crawler %v, family %d", count, crawler, family), func(t *testing.T) {
					c := newCluster(t, 1, "x/client@1 app=client", "y/server@1")
					agent := c.Start(t)[0]
					labtest.WaitReady(t, agent)
					s := c.stream(t, "x/client", "y/server", c.Hosts["y/server"].Addrs[family])
					s.waitFor(t, true)
					c.finish(t, c.Hosts["x/client"].Addrs[family], count, crawler)
					for _, change := range []struct {
						name   string
						policy string
						flows  bool
					}{{"the first policy closes", closed, false}, {"allowed", allowed, true}, {"all but a port is denied", some, false}, {"allowed again", allowed, true}, {"closed again", closed, false}} {
						begin := time.Now()
						c.Replace(t, "policies", change.policy)
						t.Logf("%s: %v", change.name, s.waitFor(t, change.flows).Sub(begin))
					}
				})
			}
		}
	}
}
