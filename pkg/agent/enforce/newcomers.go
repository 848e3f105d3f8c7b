package enforce

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

const (
	// newcomerWindow is how long packets from an address may wait for its pod to become
	// known: about as long as a kubelet takes to write the status of a pod. The queue limits
	// the wait of each packet.
	newcomerWindow = 5 * time.Second
	// newcomerRest is the time until packets from an address that stayed unknown may wait
	// again: it usually belongs to a node.
	newcomerRest = time.Minute
	// newcomerPackets is how many packets from an address may start to wait in its window,
	// newcomerRate how many from all addresses in a second, and newcomerNetworkRate how many
	// from one network, so that a sweep with one node's addresses leaves a quarter to other
	// nodes. Five seconds of packets fit into a queue; each waits at most four.
	newcomerPackets     = 32
	newcomerRate        = 256
	newcomerNetworkRate = newcomerRate * 3 / 4
	// newcomerRepeats is how long a waiting first packet of a TCP connection suppresses its
	// repetitions. Clients repeat it after one and three seconds (RFC 6298): the second
	// repetition may wait again, because the first packet may have been dropped by then.
	newcomerRepeats = 2500 * time.Millisecond
	// newcomerAddresses is how many addresses are remembered. A further one replaces the
	// oldest.
	newcomerAddresses = 1024
)

// newcomers bounds the packets that wait because their source may be a pod of another
// node that is not known yet. Its methods may be called from any goroutine.
type newcomers struct {
	mu        sync.Mutex
	windows   map[netip.Addr]*newcomer
	order     []netip.Addr // of windows, the oldest first
	second    time.Time    // since when packets are counted
	packets   int
	byNetwork map[netip.Prefix]int        // packets of this second, by network
	opening   map[packet.Packet]time.Time // waiting TCP packets, and when they began to wait
}

// admission is whether a packet may wait.
type admission int

const (
	refused admission = iota
	admitted
	repeated // the same packet already waits
)

// newcomer is an address that may be that of a new pod.
type newcomer struct {
	since   time.Time
	packets int
}

func newNewcomers() *newcomers {
	return &newcomers{windows: make(map[netip.Addr]*newcomer), byNetwork: make(map[netip.Prefix]int), opening: make(map[packet.Packet]time.Time)}
}

// admit decides whether a packet may wait, and counts it if so.
func (n *newcomers) admit(p packet.Packet, now time.Time) admission {
	n.mu.Lock()
	defer n.mu.Unlock()
	if now.Sub(n.second) >= time.Second {
		n.second, n.packets = now, 0
		clear(n.byNetwork)
		maps.DeleteFunc(n.opening, func(_ packet.Packet, since time.Time) bool { return now.Sub(since) >= newcomerRepeats })
	}
	if since, ok := n.opening[p]; ok && now.Sub(since) < newcomerRepeats {
		return repeated
	}
	addr := p.Src.Addr()
	net := network(addr)
	if n.packets >= newcomerRate || n.byNetwork[net] >= newcomerNetworkRate {
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
	n.byNetwork[net]++
	if p.Proto == packet.TCP {
		n.opening[p] = now
	}
	return admitted
}

// known forgets an address whose pod has become known, so that a later pod with this address
// gets its own window.
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
