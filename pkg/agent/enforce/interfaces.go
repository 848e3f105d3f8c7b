package enforce

import (
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// Interfaces are the interfaces of the node. They must not be modified after SetInterfaces.
type Interfaces struct {
	// Links has every interface, by its index.
	Links map[uint32]Behind
	// Routes are the destinations, beyond the addresses of pods, that the node sends to interfaces of
	// single pods, and more specific ones elsewhere. The most specific ones come first.
	Routes []Route
}

// Behind is what is behind an interface.
type Behind struct {
	// Single means that every packet on the interface is from or to one pod, or one machine that is
	// no known pod.
	Single bool
	// Pod has the addresses of that pod, and no others are behind the interface. It is empty if the
	// pod is not known, and if there may be several.
	Pod []netip.Addr
	// Name is that of the interface if Pod is not empty.
	Name string
	// ToHost and Receivers are pods behind the interface whose policies may deny packets to the node,
	// and packets to them: one address for each set of pods that the same policies select.
	ToHost, Receivers []netip.Addr
	// Forwards are the sources, other than its own, whose packets Pod may forward (FW-1).
	Forwards []netip.Prefix
}

// Route is a destination of the node's routes.
type Route struct {
	To   netip.Prefix
	Link uint32
}

// Interfaces returns what SetInterfaces has set.
func (e *Enforcer) Interfaces() *Interfaces { return e.interfaces.Load() }

// SetInterfaces replaces the interfaces. Before the first call, and with nil, interfaces are ignored.
func (e *Enforcer) SetInterfaces(i *Interfaces) { e.interfaces.Store(i) }

// Ends are the pods at the ends of a connection whose addresses are not theirs, as in policy.Query.
type Ends struct{ Sender, Receiver netip.Addr }

// EndsOf returns the pods at the ends of a connection by the routes to its addresses: the check of sources
// makes packets from an address come by the interface of the route to it. There are several if there are
// equal routes, and at least one.
func (i *Interfaces) EndsOf(p packet.Packet, s *policy.Snapshot) []Ends {
	if i == nil || len(i.Routes) == 0 {
		return noEnds
	}
	src, dst := p.Src.Addr(), p.Dst.Addr()
	senders, receivers := i.reached(src, s), i.reached(dst, s)
	if len(senders) == 0 && len(receivers) == 0 {
		return noEnds // of almost all connections, which are many
	}
	var all []Ends
	for _, from := range orNothing(senders) {
		for _, to := range orNothing(receivers) {
			all = append(all, Ends{i.Links[from.Link].sender(src), oneOf(i.Links[to.Link].Pod, dst)})
		}
	}
	return all
}

var noEnds, nothing = []Ends{{}}, []Route{{}}

// orNothing returns routes, or one to an interface with nothing behind it if there are none.
func orNothing(routes []Route) []Route {
	if len(routes) == 0 {
		return nothing
	}
	return routes
}

// reached returns the equal routes to addr, none if it is that of a pod of this node.
func (i *Interfaces) reached(addr netip.Addr, s *policy.Snapshot) []Route {
	if s.IsLocal(addr) {
		return nil
	}
	return i.routesTo(addr)
}

// routed returns what is behind the interface of the route to addr, if that is in Routes. Of equal
// routes by several interfaces it is not known which counts.
func (i *Interfaces) routed(addr netip.Addr) Behind {
	if routes := i.routesTo(addr); len(routes) == 1 {
		return i.Links[routes[0].Link]
	}
	return Behind{}
}

// routesTo returns the most specific of Routes to addr. Multicasts and link-local addresses have interfaces
// of their own.
func (i *Interfaces) routesTo(addr netip.Addr) []Route {
	if addr.IsMulticast() || addr.Is6() && addr.IsLinkLocalUnicast() {
		return nil
	}
	for n, r := range i.Routes {
		if r.To.Contains(addr) {
			end := n + 1
			for end < len(i.Routes) && i.Routes[end].To == r.To {
				end++
			}
			return i.Routes[n:end]
		}
	}
	return nil
}

// sender returns the address of the single pod, unless it forwards packets from src.
func (b Behind) sender(src netip.Addr) netip.Addr {
	if slices.ContainsFunc(b.Forwards, func(f netip.Prefix) bool { return f.Contains(src) }) {
		return netip.Addr{}
	}
	return oneOf(b.Pod, src)
}

// oneOf returns the address of a pod of the same family as addr if it has one, else another one, and an
// invalid one if there is none.
func oneOf(pod []netip.Addr, addr netip.Addr) (one netip.Addr) {
	for i, a := range pod {
		if i == 0 || a.Is4() == addr.Is4() {
			one = a
		}
	}
	return one
}

// place is where a packet comes from and goes to by its interfaces.
type place struct {
	sender, receiver netip.Addr   // see policy.Query
	receivers        []netip.Addr // instead of receiver: the packet is for each of these pods
	fleeting         bool         // another pod may get to an end while its address remains
}

// locate finds the pods behind the interfaces of a packet that is not for the node itself, of ends
// whose addresses are not those of pods of this node. known is false if an interface is not known: it
// may lead to any pod.
func (e *Enforcer) locate(p *packet.Packet, in *Input, s *policy.Snapshot) (at place, known bool) {
	i := e.interfaces.Load()
	if i == nil || in.ToHost {
		return at, true
	}
	known = true
	if !s.IsLocal(p.Src.Addr()) {
		known = at.locateSender(i, p, in)
	}
	if s.IsLocal(p.Dst.Addr()) {
		at.locateOther(i.Links[in.OutLink].Pod, p.Dst.Addr())
	} else if !at.locateReceiver(i, p, in) {
		known = false
	}
	return at, known
}

// locateOther makes pod, which is alone behind the output interface, the receiver if dst is the address of
// another pod: rules of the node may send a packet, or a copy of it (TEE), to a pod that it is not for.
func (at *place) locateOther(pod []netip.Addr, dst netip.Addr) {
	if len(pod) > 0 && !slices.Contains(pod, dst) {
		at.receiver, at.fleeting = oneOf(pod, dst), true
	}
}

// locateSender reports whether the input interface is known, if there is one.
func (at *place) locateSender(i *Interfaces, p *packet.Packet, in *Input) bool {
	// The kernel may report the output interface of an IPv6 multicast as its input interface, too.
	// Multicasts are not sent back to where they come from.
	if in.Link == 0 || in.Link == in.OutLink && p.Dst.Addr().IsMulticast() {
		return true
	}
	src := p.Src.Addr()
	from, known := i.Links[in.Link]
	at.fleeting, at.sender = from.Single, from.sender(src)
	return known
}

// locateReceiver reports whether the output interface is known, if there is one.
func (at *place) locateReceiver(i *Interfaces, p *packet.Packet, in *Input) bool {
	dst := p.Dst.Addr()
	if in.OutLink == 0 { // not routed yet
		at.receiver = oneOf(i.routed(dst).Pod, dst)
		at.fleeting = at.fleeting || at.receiver.IsValid()
		return true
	}
	to, known := i.Links[in.OutLink]
	at.fleeting = at.fleeting || to.Single
	at.receiver = oneOf(to.Pod, dst)
	if dst.IsMulticast() {
		at.fleeting = true // it may have further receivers
		if len(to.Pod) == 0 {
			at.receivers = to.Receivers
		}
	}
	return known
}
