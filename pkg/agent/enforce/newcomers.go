package enforce

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
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
	// newcomerPackets is how many packets from an address may begin to wait in its window.
	newcomerPackets = 32
	// newcomerRoom is how many packets from all addresses may begin to wait in newcomerSeconds, and
	// newcomerNetworkRoom how many from one network, so that a sweep with one node's addresses
	// leaves a quarter to other nodes. All of them may come at once, as from hundreds of pods that
	// start on a node.
	newcomerSeconds     = 5
	newcomerRoom        = bounds.LongWaiting
	newcomerNetworkRoom = newcomerRoom * 3 / 4
	// newcomerRepeats is how long a waiting first packet of a TCP connection suppresses its
	// repetitions. Clients repeat it after one and three seconds (RFC 6298): the second
	// repetition may wait too, because the first packet is soon dropped.
	newcomerRepeats = 2500 * time.Millisecond
	// newcomerAddresses is how many addresses are remembered. A further one replaces the
	// oldest.
	newcomerAddresses = 1024
)

// newcomers bounds the packets that wait because their source may be a pod of another
// node that is not known yet. Its methods may be called from any goroutine.
type newcomers struct {
	mu      sync.Mutex
	windows map[netip.Addr]*newcomer
	order   []netip.Addr // of windows, the oldest first
	recent  recent
	opening map[packet.Packet]time.Time // waiting TCP packets, and when they began to wait
}

// recent counts the packets that have begun to wait in the last newcomerSeconds, by network.
type recent struct {
	since     time.Time // when the current second has begun
	seconds   [newcomerSeconds]map[netip.Prefix]int
	current   int // of seconds
	packets   int // of all seconds
	byNetwork map[netip.Prefix]int
}

// admission is whether a packet may wait.
type admission int

const (
	refused admission = iota
	admitted
	repeated // the same packet is already pending
)

// newcomer is an address that may be that of a new pod.
type newcomer struct {
	since   time.Time
	packets int
}

func newNewcomers() *newcomers {
	n := &newcomers{windows: make(map[netip.Addr]*newcomer), opening: make(map[packet.Packet]time.Time)}
	n.recent.byNetwork = make(map[netip.Prefix]int)
	for i := range n.recent.seconds {
		n.recent.seconds[i] = make(map[netip.Prefix]int)
	}
	return n
}

// admit decides whether a packet may wait, and counts it if so.
func (n *newcomers) admit(p packet.Packet, now time.Time) admission {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.recent.advance(now) {
		maps.DeleteFunc(n.opening, func(_ packet.Packet, since time.Time) bool { return now.Sub(since) >= bounds.LongWait })
	}
	since, opening := n.opening[p]
	waits := opening && now.Sub(since) < bounds.LongWait
	switch {
	case waits && now.Sub(since) < newcomerRepeats:
		return repeated
	case n.mayWait(p.Src.Addr(), waits, now):
		if p.Proto == packet.TCP {
			n.opening[p] = now
		}
		return admitted
	case waits:
		return repeated
	}
	return refused
}

// mayWait reports whether a packet from addr may wait, and counts it if so. One that repeats a waiting
// packet takes no room from other connections of the address.
func (n *newcomers) mayWait(addr netip.Addr, repeats bool, now time.Time) bool {
	net := network(addr)
	if n.recent.packets >= newcomerRoom || n.recent.byNetwork[net] >= newcomerNetworkRoom {
		return false
	}
	w := n.windows[addr]
	switch {
	case w == nil:
		w = n.add(addr, now)
	case now.Sub(w.since) >= newcomerRest:
		*w = newcomer{since: now}
	case now.Sub(w.since) >= newcomerWindow || !repeats && w.packets >= newcomerPackets:
		return false
	}
	if !repeats {
		w.packets++
	}
	n.recent.add(net)
	return true
}

// advance forgets the packets of seconds that are over, and reports whether one is.
func (r *recent) advance(now time.Time) bool {
	over := int(now.Sub(r.since) / time.Second)
	if over <= 0 {
		return false
	}
	r.since = r.since.Add(time.Duration(over) * time.Second)
	if over > newcomerSeconds {
		r.since = now
	}
	for range min(over, newcomerSeconds) {
		r.current = (r.current + 1) % newcomerSeconds
		for net, packets := range r.seconds[r.current] {
			r.packets -= packets
			r.byNetwork[net] -= packets
			if r.byNetwork[net] == 0 {
				delete(r.byNetwork, net)
			}
		}
		clear(r.seconds[r.current])
	}
	return true
}

func (r *recent) add(net netip.Prefix) {
	r.packets++
	r.byNetwork[net]++
	r.seconds[r.current][net]++
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
