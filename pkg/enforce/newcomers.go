package enforce

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
)

const (
	// newcomerWindow is how long packets of an address may wait for the pod that has it:
	// about as long as a kubelet takes to write the status of a pod. Each packet waits
	// as long as the queue lets it.
	newcomerWindow = 5 * time.Second
	// newcomerRest is the time until an address that stayed unknown may wait again: it
	// is one of a node, as a rule.
	newcomerRest = time.Minute
	// newcomerPackets is how many packets of an address may begin to wait in its window,
	// newcomerRate how many of all addresses in a second, and newcomerNetworkRate how many
	// of one network, so that one node whose addresses are swept leaves the others a quarter.
	// Those of five seconds, of which packets that wait for four may be, fit into a queue.
	newcomerPackets     = 32
	newcomerRate        = 256
	newcomerNetworkRate = newcomerRate * 3 / 4
	// newcomerRepeats is how long the first packet of a TCP connection stands for those that
	// repeat it. Clients repeat it after one and three seconds (RFC 6298): the second
	// repetition may wait again, because what waits is given up after seconds.
	newcomerRepeats = 2500 * time.Millisecond
	// newcomerAddresses are remembered. A further one takes the place of the oldest.
	newcomerAddresses = 1024
)

// newcomers bounds the packets that wait because their source may be a pod of another
// node that is not known yet. Its methods may be called from any goroutine.
type newcomers struct {
	mu      sync.Mutex
	windows map[netip.Addr]*newcomer
	order   []netip.Addr // of windows, the oldest first
	second  time.Time    // since when packets are counted
	packets int
	ofEach  map[netip.Prefix]int        // of these, by network
	opening map[packet.Packet]time.Time // those of TCP, and when they began to wait
}

// admission is whether a packet may wait.
type admission int

const (
	refused admission = iota
	admitted
	repeated // a packet like it waits already
)

// newcomer is an address that may be that of a new pod.
type newcomer struct {
	since   time.Time
	packets int
}

func newNewcomers() *newcomers {
	return &newcomers{windows: make(map[netip.Addr]*newcomer), ofEach: make(map[netip.Prefix]int), opening: make(map[packet.Packet]time.Time)}
}

// admit decides whether a packet may wait, and counts it if so.
func (n *newcomers) admit(p packet.Packet, now time.Time) admission {
	n.mu.Lock()
	defer n.mu.Unlock()
	if now.Sub(n.second) >= time.Second {
		n.second, n.packets = now, 0
		clear(n.ofEach)
		maps.DeleteFunc(n.opening, func(_ packet.Packet, since time.Time) bool { return now.Sub(since) >= newcomerRepeats })
	}
	if since, ok := n.opening[p]; ok && now.Sub(since) < newcomerRepeats {
		return repeated
	}
	addr := p.Src.Addr()
	of := network(addr)
	if n.packets >= newcomerRate || n.ofEach[of] >= newcomerNetworkRate {
		return refused
	}
	w := n.windows[addr]
	switch {
	case w == nil:
		w = n.add(addr, now)
	case now.Sub(w.since) >= newcomerRest:
		*w = newcomer{since: now}
	case now.Sub(w.since) >= newcomerWindow || w.packets >= newcomerPackets:
		return refused
	}
	w.packets++
	n.packets++
	n.ofEach[of]++
	if p.Proto == packet.TCP {
		n.opening[p] = now
	}
	return admitted
}

// known is called when the pod of an address has become known. A later pod that gets the
// address has a window of its own.
func (n *newcomers) known(addr netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.windows[addr] == nil {
		return
	}
	delete(n.windows, addr)
	i := slices.Index(n.order, addr)
	n.order = slices.Delete(n.order, i, i+1)
}

// network returns the network of addr: of a size that most clusters give to one node.
func network(addr netip.Addr) netip.Prefix {
	bits := 24
	if addr.Is6() {
		bits = 64
	}
	prefix, _ := addr.Prefix(bits) // zero for an address with a zone, which no packet has
	return prefix
}

func (n *newcomers) add(addr netip.Addr, now time.Time) *newcomer {
	if len(n.order) >= newcomerAddresses {
		delete(n.windows, n.order[0])
		n.order = n.order[1:]
	}
	w := &newcomer{since: now}
	n.windows[addr] = w
	n.order = append(n.order, addr)
	return w
}
