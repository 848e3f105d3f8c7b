package netns

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// dnsService makes the node forward queries to the pods in turn.
func (c *cluster) dnsService(t *testing.T, pods ...*lab.Pod) []netip.AddrPort {
	t.Helper()
	vips := []netip.AddrPort{netip.MustParseAddrPort("10.96.0.10:53"), netip.MustParseAddrPort("[fd00:10:96::10]:53")}
	rules := "table inet service {\nchain prerouting {\ntype nat hook prerouting priority dstnat\n"
	for i, pod := range pods {
		turn := fmt.Sprintf("udp dport 53 numgen inc mod %d == 0 dnat", len(pods)-i)
		rules += fmt.Sprintf("ip daddr %s %s ip to %s\n", vips[0].Addr(), turn, netip.AddrPortFrom(pod.Addr(lab.IPv4), 80))
		rules += fmt.Sprintf("ip6 daddr %s %s ip6 to %s\n", vips[1].Addr(), turn, netip.AddrPortFrom(pod.Addr(lab.IPv6), 80))
	}
	if _, err := c.Nodes[0].Run(t.Context(), rules+"}\n}\n", "nft", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	return vips
}

// TestEarlyUDPAnswersBothQueries sends what the C library's resolver sends: a query for
// IPv4 and one for IPv6 addresses at the same time. Where the kernel needs the workaround
// for that, the agent must use it.
func TestEarlyUDPAnswersBothQueries(t *testing.T) {
	c := newCluster(t, 2, "x/dns@1 app=dns", "x/far@2 app=dns", "y/web@1 app=web", "y/bad@1 app=bad")
	vips := c.dnsService(t, c.Pods["x/dns"], c.Pods["x/far"])
	c.Apply(t, "policies", labtest.Policy("x", "dns", `{podSelector: {}, ingress: [{from: [{namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}]}]}`)+
		labtest.Policy("y", "web", `{podSelector: {matchLabels: {app: web}}, policyTypes: [Egress], egress: [{ports: [{port: 80, protocol: UDP}]}]}`))
	c.Start(t)
	c.Expect(t, labtest.Yes("y/web", "x/dns", "udp/80"), labtest.Yes("y/web", "x/far", "udp/80"), labtest.No("y/web", "x/dns", "tcp/80"), labtest.No("y/bad", "x/far", "udp/80"))
	for _, vip := range vips {
		for range 20 {
			c.askTwice(t, "y/web", vip)
		}
		c.Expect(t, labtest.No("y/bad", vip.Addr().String(), "udp/53"))
	}
}

// askTwice sends two datagrams from one socket and expects an answer to each.
func (c *cluster) askTwice(t *testing.T, from string, to netip.AddrPort) {
	t.Helper()
	conn, err := c.Hosts[from].Dial(t.Context(), lab.UDP, to)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, query := range []string{"A", "AAAA"} {
		if _, err := io.WriteString(conn, query); err != nil {
			t.Fatal(err)
		}
	}
	conn.SetReadDeadline(time.Now().Add(labtest.ChangeTimeout))
	buffer := make([]byte, 100)
	for i := range 2 {
		n, err := conn.Read(buffer)
		if err != nil {
			t.Fatalf("%s to %s: %d of 2 answers came: %v", from, to, i, err)
		}
		if name := string(buffer[:n]); !slices.Contains([]string{"x/dns", "x/far"}, name) {
			t.Errorf("%s to %s: %q answered", from, to, name)
		}
	}
}
