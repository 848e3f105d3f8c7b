package neighbours

import (
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// The policies of every test: x accepts only app=db, y/db accepts nothing, and z/out sends
// only to x.
var (
	isolated = labtest.Policy("x", "only-db", `{podSelector: {}, ingress: [{from: [{namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}]}]}`)
	closed   = labtest.Policy("x", "only-db", `{podSelector: {}, policyTypes: [Ingress]}`)
	rest     = labtest.Policy("y", "nothing", `{podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress]}`) +
		labtest.Policy("z", "only-x", `{podSelector: {}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: {ns: x}}}]}]}`)
)

// denied and allowed are what these policies mean.
var (
	denied = []labtest.Expectation{
		labtest.No("y/web", "x/web", "tcp/80"), labtest.No("y/web", "x/web", "udp/80"),
		labtest.No("z/out", "y/web", "tcp/80"), labtest.No("z/out", "y/web", "udp/80"),
		labtest.No("y/web", "y/db", "tcp/80"),
	}
	allowed = []labtest.Expectation{
		labtest.Yes("y/db", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "udp/80"),
		labtest.Yes("z/out", "x/web", "tcp/80"), labtest.Yes("y/db", "y/web", "tcp/80"),
		labtest.Yes("node-1", "x/web", "tcp/80"), labtest.Yes("x/web", "node-1", "tcp/80"),
	}
)

// node is a cluster with one node.
type node struct {
	*labtest.Cluster
}

func newNode(t *testing.T) node {
	t.Helper()
	n := node{labtest.NewCluster(t, 1, "x/web@1 app=web", "y/web@1 app=web", "y/db@1 app=db", "z/out@1 app=db")}
	n.Replace(t, "x", isolated)
	n.Replace(t, "rest", rest)
	return n
}

// run runs a script on the node, in which $WEB4 and $WEB6 are the addresses of x/web, and
// so on for each pod.
func (n node) run(t *testing.T, script string) string {
	t.Helper()
	var names []string
	for name, pod := range map[string]string{"WEB": "x/web", "OTHER": "y/web", "DB": "y/db", "OUT": "z/out"} {
		host := n.Hosts[pod]
		names = append(names, "$"+name+"4", host.Addr(lab.IPv4).String(), "$"+name+"6", host.Addr(lab.IPv6).String())
	}
	out, err := n.Nodes[0].Run(t.Context(), strings.NewReplacer(names...).Replace(script), "bash", "-e")
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return out
}

// agent starts an agent and waits until it is ready.
func (n node) agent(t *testing.T) *lab.Agent {
	t.Helper()
	return n.StartOn(t, n.Nodes[0])
}

// remove ends the agent and removes its state from the kernel.
func (n node) remove(t *testing.T, agent *lab.Agent) {
	t.Helper()
	if err := agent.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out, err := n.Nodes[0].Run(t.Context(), "", labtest.AgentBinary, "cleanup"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// listNeighbours lists the state of all other programs in the kernel, without packet
// counters.
const listNeighbours = `
nft -s list ruleset 2>/dev/null | sed '/^table .* netpol-agent {/,/^}/d'
if [ -s /proc/net/ip_tables_names ]; then iptables-legacy-save | sed '/^#/d; s/\[[0-9:]*\]//'; fi
if [ -s /proc/net/ip6_tables_names ]; then ip6tables-legacy-save | sed '/^#/d; s/\[[0-9:]*\]//'; fi
ipset save | sed 's/ initval .*//'
for family in -4 -6; do ip $family rule; ip $family route show table all | sort; done
grep -rs . /proc/sys/net/ipv4/conf /proc/sys/net/ipv6/conf /proc/sys/net/bridge /proc/sys/net/netfilter | grep -v nf_conntrack_count | sort
`

// list lists the state of the neighbours.
func (n node) list(t *testing.T, nb neighbour) string {
	t.Helper()
	if nb.list != nil {
		return nb.list(t, n)
	}
	return n.run(t, listNeighbours)
}

// unchanged compares the state of the neighbours with their earlier state.
func (n node) unchanged(t *testing.T, nb neighbour, before, when string) {
	t.Helper()
	old, now := strings.Split(before, "\n"), strings.Split(n.list(t, nb), "\n")
	if !slices.Equal(old, now) {
		isIn := func(lines []string) func(string) bool {
			return func(line string) bool { return slices.Contains(lines, line) }
		}
		t.Errorf("%s the neighbour had\n%q\nand has\n%q", when, slices.DeleteFunc(slices.Clone(old), isIn(now)), slices.DeleteFunc(now, isIn(old)))
	}
}

// conversation is an established TCP connection to a server that echoes.
type conversation struct{ net.Conn }

func (n node) talk(t *testing.T, from, to string) conversation {
	t.Helper()
	conn, err := n.Hosts[from].Dial(t.Context(), lab.TCP, netip.AddrPortFrom(n.Hosts[to].Addr(lab.IPv4), 80))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	c := conversation{conn}
	if err := labtest.Within(t, c.answered); err != nil {
		t.Fatalf("%s gets no answer of %s", from, to)
	}
	return c
}

// answered reports whether the server sends something within a second.
func (c conversation) answered() bool {
	c.SetDeadline(time.Now().Add(time.Second))
	if _, err := io.WriteString(c, "are you there?"); err != nil {
		return false
	}
	_, err := c.Read(make([]byte, 512))
	return err == nil
}

// ends waits until the server is silent.
func (c conversation) ends(t *testing.T) {
	t.Helper()
	if err := labtest.Within(t, func() bool { return !c.answered() }); err != nil {
		t.Error("an established connection goes on after it is denied")
	}
}
