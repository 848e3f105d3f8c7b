package attacks

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// behindBad are addresses that no status shows: of a Service, by direct server return, of networks, and of
// what is only behind a default route.
var behindBad = addrs("192.0.2.10", "2001:db8:10::10", "10.8.0.5", "2001:db8:8::5", "203.0.113.7", "2001:db8:77::7")

// vipPort is served at these addresses.
const vipPort = 90

// routeBehind routes the addresses to the pod x/bad of the first node, where they are answered.
func routeBehind(t *testing.T, c *labtest.Cluster) {
	t.Helper()
	bad, one := c.Hosts["x/bad"], c.Nodes[0]
	looseFilter(t, one)
	for i, addr := range behindBad {
		script(t, bad, fmt.Sprintf("ip addr add %s dev lo nodad || ip addr add %[1]s dev lo", netip.PrefixFrom(addr, addr.BitLen())))
		to, _ := addr.Prefix([]int{addr.BitLen(), addr.BitLen() * 3 / 4, 0}[i/2])
		script(t, one.Host, fmt.Sprintf("ip route replace %s via %s", to, sameFamily(addr, bad.Addrs)))
		for _, other := range c.Nodes[1:] {
			script(t, other.Host, fmt.Sprintf("ip route replace %s via %s", to, sameFamily(addr, one.Addrs)))
		}
	}
	own := bad.Addrs
	bad.Addrs = behindBad
	err := bad.Serve(vipPort)
	bad.Addrs = own
	if err != nil {
		t.Fatal(err)
	}
}

func sameFamily(as netip.Addr, all []netip.Addr) netip.Addr {
	for _, a := range all {
		if a.Is4() == as.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

// from binds a socket to an address.
func from(addr netip.Addr) lab.SocketOption {
	return func(fd int) error {
		if addr.Is4() {
			return unix.Bind(fd, &unix.SockaddrInet4{Addr: addr.As4()})
		}
		return unix.Bind(fd, &unix.SockaddrInet6{Addr: addr.As16()})
	}
}

// question is what a client asks a server.
type question struct {
	client *lab.Host
	proto  lab.Proto
	src    netip.Addr // any if it is not valid
	to     netip.AddrPort
}

// answered asks all questions at once until each was answered, or, if want is false, until none is.
func answered(t *testing.T, want bool, questions []question) {
	t.Helper()
	errs := make([]error, len(questions))
	waitFor(t, func() bool {
		var asked sync.WaitGroup
		for i, q := range questions {
			asked.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), labtest.Silence)
				defer cancel()
				errs[i] = ask(ctx, q.client, q.proto, q.src, q.to)
			})
		}
		asked.Wait()
		return !slices.ContainsFunc(errs, func(err error) bool { return (err == nil) != want })
	}, func() string {
		var wrong string
		for i, q := range questions {
			if (errs[i] == nil) != want {
				wrong += fmt.Sprintf("%s from %v by %v to %v: %v, want an answer: %v\n", q.client.Name, q.src, q.proto, q.to, errs[i], want)
			}
		}
		return wrong
	})
}

// ask sends from src, or any address if it is not valid, and awaits an answer.
func ask(ctx context.Context, client *lab.Host, proto lab.Proto, src netip.Addr, to netip.AddrPort) error {
	if proto == lab.ICMP {
		answer, err := client.Probe(ctx, proto, to, labtest.Silence)
		if err == nil && answer.Outcome != lab.Connected {
			err = fmt.Errorf("the echo request %v", answer.Outcome)
		}
		return err
	}
	var options []lab.SocketOption
	if src.IsValid() {
		options = append(options, from(src))
	}
	conn, err := client.Dial(ctx, proto, to, options...)
	if err != nil {
		return err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	conn.SetDeadline(deadline)
	if _, err := conn.Write([]byte("name?")); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 64))
	return err
}

// into are questions of clients to the addresses behind x/bad.
func into(c *labtest.Cluster, clients ...*lab.Host) (all []question) {
	for _, client := range clients {
		for _, addr := range behindBad {
			for _, proto := range []lab.Proto{lab.TCP, lab.UDP, lab.ICMP} {
				all = append(all, question{client, proto, netip.Addr{}, netip.AddrPortFrom(addr, vipPort)})
			}
		}
	}
	return all
}

// outOf are questions of x/bad from these addresses.
func outOf(c *labtest.Cluster, servers ...*lab.Host) (all []question) {
	for _, server := range servers {
		for _, addr := range behindBad {
			for _, proto := range []lab.Proto{lab.TCP, lab.UDP} {
				all = append(all, question{c.Hosts["x/bad"], proto, addr, netip.AddrPortFrom(sameFamily(addr, server.Addrs), 80)})
			}
		}
	}
	return all
}

// opened are connections with an address behind x/bad at one end.
type opened struct{ client, server net.Conn }

// open opens a connection to x/bad, and one from it, for each address.
func open(t *testing.T, c *labtest.Cluster, peer string, port uint16) (all []opened) {
	t.Helper()
	bad, other := c.Hosts["x/bad"], c.Hosts[peer]
	connect := func(client, server *lab.Host, src, to netip.Addr) {
		t.Helper()
		listener, err := server.Listen(netip.AddrPortFrom(to, port))
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		conn, err := client.Dial(t.Context(), lab.TCP, netip.AddrPortFrom(to, port), from(src))
		if err != nil {
			t.Fatal(err)
		}
		accepted, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close(); accepted.Close() })
		all = append(all, opened{conn, accepted})
	}
	for _, addr := range behindBad {
		connect(other, bad, sameFamily(addr, other.Addrs), addr)
		connect(bad, other, addr, sameFamily(addr, other.Addrs))
	}
	return all
}

// TestAddressesBehindAPod: what enters and leaves by the interface of an isolated pod is the pod's,
// whatever the address.
func TestAddressesBehindAPod(t *testing.T) {
	c := labtest.NewCluster(t, 2, "x/bad@1", "y/good@1", "z/peer@2")
	routeBehind(t, c)
	agent := c.Start(t)[0]
	near, far := c.Hosts["y/good"], c.Hosts["z/peer"]
	both := append(into(c, near, far), outOf(c, near, far)...)
	answered(t, true, both)
	early := open(t, c, "z/peer", 91)

	deny := labtest.Policy("x", "deny", `{podSelector: {}, policyTypes: [Ingress, Egress]}`)
	c.Enforce(t, agent, "policies", deny)
	answered(t, false, both)
	awaitSilence(t, early)
	answered(t, true, into(c, c.Nodes[0].Host)) // the own node may always connect to its pods

	c.Enforce(t, agent, "policies", labtest.Policy("x", "some", `{podSelector: {}, policyTypes: [Ingress, Egress],
		ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: z}}}]}],
		egress: [{to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: y}}}]}]}`))
	answered(t, true, append(into(c, far), outOf(c, near)...))
	answered(t, false, append(into(c, near), outOf(c, far)...))

	c.Enforce(t, agent, "policies", labtest.Policy("x", "all", `{podSelector: {}, policyTypes: [Ingress, Egress], ingress: [{}], egress: [{}]}`))
	answered(t, true, both)
	for _, conn := range early {
		says(t, conn.client, conn.server, "again")
	}
	all := append(early, open(t, c, "y/good", 92)...)
	c.Enforce(t, agent, "policies", deny)
	awaitSilence(t, all)
	answered(t, false, both)
}

// awaitSilence waits until nothing that clients send arrives any more.
func awaitSilence(t *testing.T, all []opened) {
	t.Helper()
	waitFor(t, func() bool {
		var goesOn atomic.Bool
		var asked sync.WaitGroup
		for _, conn := range all {
			asked.Go(func() {
				_, err := conn.client.Write([]byte("again"))
				goesOn.CompareAndSwap(false, err != nil || hearsSome(conn.server))
			})
		}
		asked.Wait()
		return !goesOn.Load()
	}, func() string { return "a connection goes on" })
}

// hearsSome reports whether anything arrives.
func hearsSome(conn net.Conn) bool {
	conn.SetReadDeadline(time.Now().Add(labtest.Silence))
	n, _ := conn.Read(make([]byte, 4096))
	return n > 0
}

// TestAdministratorsDenyAddressesBehindAPod: an administrator's Deny holds for these addresses of its
// subject, and of its peers that are pods of the same node. An agent that starts again in the middle
// decides the same, and ends what was opened meanwhile.
func TestAdministratorsDenyAddressesBehindAPod(t *testing.T) {
	c := labtest.NewCluster(t, 2, "x/bad@1 app=web", "y/good@1 app=db", "z/peer@2")
	routeBehind(t, c)
	agent := c.Start(t, labtest.WithAdmin)[0]
	near, far := c.Hosts["y/good"], c.Hosts["z/peer"]
	for name, rules := range map[string]string{
		"egress":  `egress: [{name: db, action: Deny, to: [{namespaces: {matchLabels: {kubernetes.io/metadata.name: y}}}]}]`,
		"ingress": `ingress: [{name: db, action: Deny, from: [{namespaces: {matchLabels: {kubernetes.io/metadata.name: y}}}]}]`,
	} {
		c.Enforce(t, agent, "admin", labtest.Admin(name, rules))
		denied, allowed := into(c, near), outOf(c, near)
		if name == "egress" {
			denied, allowed = allowed, denied
		}
		answered(t, false, denied)
		answered(t, true, append(allowed, append(into(c, far), outOf(c, far)...)...))
	}

	// The pods app=db accept nothing from x/bad, and the pods app=web are not selected.
	peer := strings.ReplaceAll(labtest.Admin("peer", `ingress: [{name: web, action: Deny, from: [{namespaces: {matchLabels: {kubernetes.io/metadata.name: x}}}]}]`), "app: web", "app: db")
	c.Enforce(t, agent, "admin", peer)
	answered(t, false, outOf(c, near))
	answered(t, true, append(into(c, near, far), outOf(c, far)...))

	early := open(t, c, "z/peer", 91)
	agent.Kill()
	c.Apply(t, "admin", labtest.Admin("all", `ingress: [{name: all, action: Deny, from: [{namespaces: {}}]}], egress: [{name: all, action: Deny, to: [{namespaces: {}}]}]`))
	agent = c.StartOn(t, c.Nodes[0], labtest.WithAdmin)
	labtest.WaitReady(t, agent)
	awaitSilence(t, early)
	answered(t, false, append(into(c, near, far), outOf(c, near, far)...))
}

// TestSCTPOfAddressesBehindAPod: the same for SCTP, whose packets are raw ones here.
func TestSCTPOfAddressesBehindAPod(t *testing.T) {
	c := labtest.NewCluster(t, 2, "x/bad@1", "z/peer@2")
	routeBehind(t, c)
	bad, peer := c.Hosts["x/bad"], c.Hosts["z/peer"]
	isSCTP := func(packet []byte) bool {
		return len(packet) > 40 && (packet[0]>>4 == 4 && packet[9] == protoSCTP || packet[0]>>4 == 6 && packet[6] == protoSCTP)
	}
	arrived := map[*lab.Host]*lab.Capture{}
	for _, host := range []*lab.Host{bad, peer} {
		capture, err := host.Capture(isSCTP)
		if err != nil {
			t.Fatal(err)
		}
		arrived[host] = capture
	}
	port, want := uint16(20000), 0
	send := func() (sent int) {
		t.Helper()
		port++
		for _, addr := range behindBad {
			for _, ends := range [][2]netip.Addr{{sameFamily(addr, peer.Addrs), addr}, {addr, sameFamily(addr, peer.Addrs)}} {
				host := map[bool]*lab.Host{true: peer, false: bad}[ends[1] == addr]
				packet := labtest.IPv6(ends[0], ends[1], protoSCTP, sctp(port, 1))
				if addr.Is4() {
					packet = labtest.IPv4(ends[0], ends[1], protoSCTP, 0, sctp(port, 1))
				}
				if err := host.SendIP(packet); err != nil {
					t.Fatal(err)
				}
			}
		}
		return len(behindBad)
	}
	arrive := func(what string) {
		t.Helper()
		waitFor(t, func() bool { return arrived[bad].Count() == want && arrived[peer].Count() == want }, func() string {
			return fmt.Sprintf("%s: %d packets arrive at the pod, and %d from it, want %d", what, arrived[bad].Count(), arrived[peer].Count(), want)
		})
	}
	want += send()
	arrive("without an agent")
	agent := c.Start(t)[0]
	for _, tt := range []struct {
		rules  string
		passes bool
	}{
		{"", false},
		{"ingress: [{ports: [{protocol: SCTP, port: 40000}]}], egress: [{ports: [{protocol: SCTP, port: 40000}]}]", true},
		{"ingress: [{ports: [{protocol: SCTP, port: 40001}]}], egress: [{ports: [{protocol: TCP, port: 40000}]}]", false},
	} {
		c.Enforce(t, agent, "policies", labtest.Policy("x", "some", "{podSelector: {}, policyTypes: [Ingress, Egress], "+tt.rules+"}"))
		before := labtest.Denied(labtest.Metrics(t, agent))
		sent := send()
		if tt.passes {
			want += sent
		} else if got := labtest.Until(t, agent, before+float64(2*sent), labtest.Denied) - before; got != float64(2*sent) {
			t.Errorf("%v packets are denied, want %d", got, 2*sent)
		}
		arrive("with rules " + tt.rules)
	}
}

// TestInterfaceNamesThatAreUsedAgain: the interface of a new pod has the name of an earlier pod's. The
// policies of the new pod apply to what is behind it.
func TestInterfaceNamesThatAreUsedAgain(t *testing.T) {
	c := labtest.NewCluster(t, 2, "x/bad@1 app=closed", "z/peer@2")
	routeBehind(t, c)
	node, far, name := c.Nodes[0], c.Hosts["z/peer"], linkTo(t, c.Nodes[0], c.Hosts["x/bad"])
	agent := c.Start(t)[0]
	c.Enforce(t, agent, "policies", labtest.Policy("x", "closed", `{podSelector: {matchLabels: {app: closed}}, policyTypes: [Ingress, Egress]}`))
	answered(t, false, append(into(c, far), outOf(c, far)...))
	for _, app := range []string{"open", "closed", "open"} {
		removeHost(t, c, c.Pods["x/bad"])
		pod := c.Attach(t, labtest.NewPod("x/bad@1 app="+app))[0]
		own := linkTo(t, node, pod.Host)
		script(t, node.Host, fmt.Sprintf("ip link set %s name %s", own, name))
		routeBehind(t, c)
		labtest.Enforced(t, agent, func() { show(t, c, pod.Object) })
		answered(t, app == "open", append(into(c, far), outOf(c, far)...))
		script(t, node.Host, fmt.Sprintf("ip link set %s name %s", name, own)) // by which the lab removes it
	}
}
