package lab

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"sync"
)

// Host is a network namespace with a name and addresses: a node, a pod, or a host outside
// the cluster. Its methods may be called from any goroutine.
type Host struct {
	Name  string
	Addrs []netip.Addr

	ns     *namespace
	uplink *Node  // the node to which it is attached, nil for a node
	link   string // the node's end of the link

	mu      sync.Mutex
	servers []io.Closer
	closed  bool
}

// settings are written in every namespace. Addresses work at once, without duplicate
// address detection, and every user may send ICMP echo requests.
var settings = map[string]string{
	"ipv6/conf/all/accept_dad":     "0",
	"ipv6/conf/default/accept_dad": "0",
	"ipv4/ping_group_range":        "0 2147483647",
}

func newHost(name string, addrs ...netip.Addr) (*Host, error) {
	ns, err := newNamespace()
	if err != nil {
		return nil, err
	}
	h := &Host{Name: name, Addrs: addrs, ns: ns}
	for key, value := range settings {
		if err := h.Set(key, value); err != nil {
			ns.close()
			return nil, err
		}
	}
	return h, nil
}

// Addr returns the host's first address of a family, or the zero Addr.
func (h *Host) Addr(family Family) netip.Addr { return pick(h.Addrs, family == IPv4) }

// Set writes a setting below /proc/sys/net of the host.
func (h *Host) Set(key, value string) error {
	return h.ns.do(func() error { return os.WriteFile("/proc/sys/net/"+key, []byte(value), 0) })
}

// ReadProc reads a file below /proc/net of the host, such as "snmp".
func (h *Host) ReadProc(name string) (string, error) {
	var content []byte
	err := h.ns.do(func() (err error) {
		content, err = os.ReadFile("/proc/thread-self/net/" + name)
		return err
	})
	return string(content), err
}

// Run runs a command in the host's namespace with stdin as its input, and returns its
// output. If the command fails, the error contains the output.
func (h *Host) Run(ctx context.Context, stdin, name string, args ...string) (string, error) {
	output, err := h.ns.run(ctx, stdin, name, args...)
	if err != nil {
		return output, fmt.Errorf("on %s: %w", h.Name, err)
	}
	return output, nil
}

// NetNS returns a path of the host's namespace for commands such as nsenter --net=PATH. It
// is valid while this process lives.
func (h *Host) NetNS() string { return h.ns.path() }

// Do runs f in the host's network namespace. Sockets that f opens stay in it. f must not
// wait for the network.
func (h *Host) Do(f func() error) error { return h.ns.do(f) }

// ip runs lines of ip commands in one process.
func (h *Host) ip(ctx context.Context, lines string) error {
	_, err := h.Run(ctx, lines, "ip", "-batch", "-")
	return err
}

// configure sets addresses and routes on the pod's end of its link.
func (h *Host) configure(ctx context.Context) error {
	var lines strings.Builder
	lines.WriteString("link set lo up\n" + linkUp("eth0"))
	for _, addr := range h.Addrs {
		fmt.Fprintf(&lines, "addr add %s dev eth0%s\n", addr, nodad(addr))
		gateway := h.uplink.gateway(addr)
		fmt.Fprintf(&lines, "route replace %s dev eth0\nroute replace default via %s dev eth0\n", gateway, gateway)
	}
	return h.ip(ctx, lines.String())
}

// linkUp brings a link up. It also shortens the time after which neighbour requests are
// repeated from a second to 50 ms, because the first ones may be sent before the other end
// is up.
func linkUp(dev string) string {
	return fmt.Sprintf("ntable change name arp_cache dev %[1]s retrans 50\n"+
		"ntable change name ndisc_cache dev %[1]s retrans 50\nlink set %[1]s up\n", dev)
}

// nodad ends a line that adds addr. Duplicate address detection would keep an IPv6 address
// unusable for a second.
func nodad(addr netip.Addr) string {
	if addr.Is4() {
		return ""
	}
	return " nodad"
}

// serve keeps a server until the host is closed.
func (h *Host) serve(server io.Closer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		server.Close()
		return
	}
	h.servers = append(h.servers, server)
}

func (h *Host) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	h.closed = true
	for _, server := range h.servers {
		server.Close()
	}
	h.ns.close()
}

// output collects the output of a process. It may be read while the process runs.
type output struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buffer.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buffer.String()
}
