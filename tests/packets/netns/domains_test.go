package netns

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

const (
	withClusterPolicies = "--admin-policies"

	dnsService4 = "10.96.0.10" // a Service in front of the resolver
)

// allowNames allows the pods web of any namespace only the domains and DNS.
func allowNames(domains string) string {
	return fmt.Sprintf(`---
apiVersion: policy.networking.k8s.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: names}
spec:
  tier: Admin
  priority: 10
  subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}}
  egress:
  - {name: dns, action: Accept, to: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: dns}}}}]}
  - {name: names, action: Accept, to: [{domainNames: [%s]}]}
  - {name: rest, action: Deny, to: [{networks: ["0.0.0.0/0", "::/0"]}]}
`, domains)
}

// newNames returns two nodes whose pods x/web and y/web may reach *.example.test and
// db.elsewhere.test. The resolver is the pod x/dns on the other node, also reachable
// through a Service. The hosts one, two and three are outside the cluster. args are further flags.
func newNames(t *testing.T, args ...string) (*cluster, *lab.Agent, *resolver) {
	t.Helper()
	c := newCluster(t, 2, "x/web@1 app=web", "y/web@1 app=web", "x/dns@2 app=dns", "y/db@2 app=db", "x/eve@1 app=eve")
	for i, name := range []string{"one", "two", "three"} {
		c.addHost(t, name, fmt.Sprintf("203.0.113.%d", i+1), fmt.Sprintf("2001:db8::%d", i+1))
	}
	r := newResolver(t, c.Hosts["x/dns"])
	c.forward(t, dnsService4, r.host.Addr(lab.IPv4))
	var resolvers []string
	for _, addr := range r.host.Addrs {
		resolvers = append(resolvers, addr.String())
	}
	agent := c.Start(t, append(args, withClusterPolicies, "--dns-resolvers="+strings.Join(resolvers, ","))...)[0]
	c.Enforce(t, agent, "names", allowNames(`"*.example.test", "DB.Elsewhere.test."`))
	c.Expect(t, labtest.No("x/web", "one", "tcp/80"), labtest.No("y/web", "one", "tcp/80"))
	return c, agent, r
}

// addHost adds a host outside the cluster, behind the second node.
func (c *cluster) addHost(t *testing.T, name string, addrs ...string) {
	t.Helper()
	var parsed []netip.Addr
	for _, addr := range addrs {
		parsed = append(parsed, netip.MustParseAddr(addr))
	}
	host, err := c.AddHost(t.Context(), c.Nodes[1], name, parsed...)
	if err != nil {
		t.Fatal(err)
	}
	c.Serve(t, host)
}

// forward makes an address the Service of another address on the first node.
func (c *cluster) forward(t *testing.T, service string, to netip.Addr) {
	t.Helper()
	proxy := fmt.Sprintf(`
table inet service {
	chain prerouting {
		type nat hook prerouting priority dstnat
		ip daddr %s meta l4proto { tcp, udp } dnat ip to %s
	}
}
`, service, to)
	if _, err := c.Nodes[0].Run(t.Context(), proxy, "nft", "-f", "-"); err != nil {
		t.Fatal(err)
	}
}

// reads fails the test unless a metric of the agent soon has a value.
func reads(t *testing.T, agent *lab.Agent, want float64, name string, labels ...string) {
	t.Helper()
	if got := labtest.Until(t, agent, want, func(m lab.Metrics) float64 { return m.Sum(name, labels...) }); got != want {
		t.Errorf("%s%v is %v, want %v", name, labels, got, want)
	}
}

func TestDomainNames(t *testing.T) {
	c, agent, r := newNames(t)
	at := r.host.Addr(lab.IPv4)
	r.set("x.example.test.", c.Hosts["one"].Addrs...)
	r.set("db.elsewhere.test.", c.Hosts["two"].Addrs...)
	r.set("example.test.", c.Hosts["three"].Addrs...)
	r.set("db.nowhere.test.", c.Hosts["three"].Addrs...)

	// By UDP to a Service. Addresses of both families are learned, whatever the family of the
	// query.
	c.lookUp(t, "x/web", "x.example.test.", lab.UDP, netip.MustParseAddr(dnsService4))
	c.Expect(t,
		labtest.Yes("x/web", "one", "tcp/80"), labtest.Yes("x/web", "one", "udp/80"), labtest.Yes("x/web", "one", "icmp"),
		labtest.No("x/web", "two", "tcp/80"), labtest.No("x/web", "three", "tcp/80"),
		labtest.No("y/web", "one", "tcp/80"), labtest.Yes("x/eve", "two", "tcp/80"))

	// By TCP over IPv6.
	c.lookUp(t, "x/web", "db.elsewhere.test.", lab.TCP, r.host.Addr(lab.IPv6))
	c.Expect(t, labtest.Yes("x/web", "two", "tcp/80"), labtest.No("y/web", "two", "tcp/80"), labtest.No("x/web", "three", "tcp/80"))

	// Names that the policy does not allow.
	c.lookUp(t, "x/web", "example.test.", lab.UDP, at)
	c.lookUp(t, "x/web", "db.nowhere.test.", lab.UDP, at)
	c.Expect(t, labtest.No("x/web", "three", "tcp/80"), labtest.Yes("x/web", "one", "tcp/80"))

	// Names are case-insensitive.
	c.lookUp(t, "y/web", "X.Example.TEST.", lab.UDP, at)
	c.Expect(t, labtest.Yes("y/web", "one", "tcp/80"), labtest.No("y/web", "two", "tcp/80"))

	reads(t, agent, 2, "netpol_dns_resolvers")
}

// TestConnectionsOutliveNames: an established connection continues when the policy loses the name that
// allowed it, as long as it has others, because the agent cannot know which names have expired. Without
// any name it is denied.
func TestConnectionsOutliveNames(t *testing.T) {
	c, agent, r := newNames(t)
	r.set("x.example.test.", c.Hosts["one"].Addrs...)
	c.lookUp(t, "x/web", "x.example.test.", lab.UDP, r.host.Addr(lab.IPv4))
	sessions := []session{c.connect(t, "x/web", "one", lab.IPv4), c.connect(t, "x/web", "one", lab.IPv6)}

	others := allowNames(`"other.test"`)
	c.Enforce(t, agent, "names", others)
	c.Expect(t, labtest.No("x/web", "one", "tcp/80"))
	for _, s := range sessions {
		if err := s.echo("other names"); err != nil {
			t.Errorf("%v, when the policy has other names: %v", s.RemoteAddr(), err)
		}
	}

	c.Enforce(t, agent, "names", strings.Replace(others, `domainNames: ["other.test"]`, `networks: [192.0.2.0/24]`, 1))
	for _, s := range sessions {
		if err := s.echo("no names"); err == nil {
			t.Errorf("%v goes on when the policy has no names", s.RemoteAddr())
		}
	}
}

// TestNamesDoNotOpenTheCluster: the owner of an allowed domain answers with addresses that
// are not its own. The pod x/eve, which no policy selects, shows that they can be reached.
func TestNamesDoNotOpenTheCluster(t *testing.T) {
	c, agent, r := newNames(t)
	const service = "10.96.0.20" // a Service in front of y/db
	c.forward(t, service, c.Hosts["y/db"].Addr(lab.IPv4))
	c.addHost(t, "metadata", "169.254.169.254", "fd00:ec2::254")
	c.addHost(t, "translated", "64:ff9b::169.254.169.254")
	at := r.host.Addr(lab.IPv4)
	stolen := map[string][]netip.Addr{
		"pod":        c.Hosts["y/db"].Addrs,
		"service":    {netip.MustParseAddr(service)},
		"own":        c.Hosts["node-1"].Addrs,
		"node":       c.Hosts["node-2"].Addrs,
		"metadata":   c.Hosts["metadata"].Addrs,
		"mapped":     {netip.MustParseAddr("::ffff:169.254.169.254")},
		"translated": c.Hosts["translated"].Addrs,
	}
	var expectations []labtest.Expectation
	for name, addrs := range stolen {
		domain := name + ".example.test."
		r.set(domain, append(slices.Clone(addrs), c.Hosts["one"].Addrs...)...)
		c.lookUp(t, "x/web", domain, lab.UDP, at)
		for _, addr := range addrs {
			to := addr.Unmap().String()
			expectations = append(expectations, labtest.No("x/web", to, "tcp/80"), labtest.Yes("x/eve", to, "tcp/80"))
		}
	}
	c.Expect(t, append(expectations, labtest.Yes("x/web", "one", "tcp/80"))...)
	if n := labtest.Metrics(t, agent).Sum("netpol_names_refused_packets_total"); n == 0 {
		t.Error("no packet was counted as refused in spite of a name")
	}

	// A connection by name ends when its address becomes a pod's.
	r.set("late.example.test.", c.Hosts["two"].Addrs...)
	c.lookUp(t, "x/web", "late.example.test.", lab.UDP, at)
	c.Expect(t, labtest.Yes("x/web", "two", "tcp/80"))
	listener := listenOn(t, c.Hosts["two"], pairPort)
	var pairs []pair
	for _, addr := range c.Addrs(t, "two") {
		pairs = append(pairs, c.openPair(t, "x/web", listener, netip.AddrPortFrom(addr, pairPort)))
	}
	late := labtest.NewPod("z/late@9") // of a node without pod ranges, so that its address may be any (NP-62)
	late.Status.Phase = corev1.PodRunning
	for _, addr := range c.Hosts["two"].Addrs {
		late.Status.PodIPs = append(late.Status.PodIPs, corev1.PodIP{IP: addr.String()})
	}
	late.Status.PodIP = late.Status.PodIPs[0].IP
	c.Put(t, labtest.PodFile("z/late"), late)
	c.Expect(t, labtest.No("x/web", "two", "tcp/80"), labtest.Yes("x/eve", "two", "tcp/80"))
	waitForBlocked(t, agent, float64(len(pairs)))
	each(pairs, func(p pair) {
		p.send(t, "after")
		p.silent(t)
	})

	// Names of Services in the cluster resolve to pods.
	c.Replace(t, "names", allowNames(`"*.svc.cluster.local"`))
	r.set("db.y.svc.cluster.local.", append(slices.Clone(c.Hosts["y/db"].Addrs), netip.MustParseAddr("169.254.169.254"))...)
	err := labtest.Within(t, func() bool { // the policy changes nothing else that could be observed
		c.lookUp(t, "x/web", "db.y.svc.cluster.local.", lab.UDP, at)
		answer, err := c.Hosts["x/web"].Probe(t.Context(), lab.TCP, netip.AddrPortFrom(c.Hosts["y/db"].Addr(lab.IPv4), 80), labtest.Silence)
		return err == nil && answer.Outcome == lab.Connected
	})
	if err != nil {
		t.Fatal(err)
	}
	c.Expect(t, labtest.Yes("x/web", "y/db", "tcp/80"), labtest.No("x/web", "169.254.169.254", "tcp/80"))
}
