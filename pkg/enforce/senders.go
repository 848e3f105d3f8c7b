package enforce

import (
	"net/netip"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// Behind are addresses of the pods behind an interface whose policies may deny them something
// at the node. The zero Behind has none.
type Behind struct {
	// OnePod is set if Addrs are the addresses of one pod, and no other pod is behind the
	// interface. Else they are one of each pod, or of several that the same policies select.
	OnePod bool
	Addrs  []netip.Addr
}

// SetBehind replaces what is behind interfaces, by their index. It must have all interfaces of
// the node, and must not be modified afterwards. Before it is called, interfaces mean nothing.
func (e *Enforcer) SetBehind(links map[uint32]Behind) { e.behind.Store(&links) }

// senders returns the pods that may have sent a packet to the node itself whose source is no
// address of a pod, such as a link-local one: those behind the interface by which it came in.
// known is false if the interface is not known, which may lead to any pod.
func (e *Enforcer) senders(p *packet.Packet, in *Input, s *policy.Snapshot, auditOnly bool) (pods Behind, known bool) {
	if !in.ToHost || in.Link == 0 || auditOnly || s.IsLocal(p.Src.Addr()) {
		return Behind{}, true
	}
	links := e.behind.Load()
	if links == nil {
		return Behind{}, true
	}
	pods, known = (*links)[in.Link]
	return pods, known
}

// as returns src with the address of the one pod, of the same family if it has one.
func (b Behind) as(src netip.AddrPort) netip.AddrPort {
	addr := b.Addrs[0]
	for _, a := range b.Addrs {
		if a.Is4() == src.Addr().Is4() {
			addr = a
		}
	}
	return netip.AddrPortFrom(addr, src.Port())
}

// severalPods reports whether any of several pods may have sent a packet.
func (b Behind) severalPods() bool { return !b.OnePod && len(b.Addrs) > 0 }

// evaluate decides about a packet that one of several pods has sent: it is denied if it is
// denied to any of them. The names that one of them has learned do not count for the others.
func (b Behind) evaluate(s *policy.Snapshot, q policy.Query) (d policy.Decision) {
	q.Learned = nil
	for _, pod := range b.Addrs {
		q.Packet.Src = netip.AddrPortFrom(pod, q.Packet.Src.Port())
		if d = s.Evaluate(q); !d.Allowed() {
			return d
		}
	}
	return d
}
