package enforce

import (
	"net/netip"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// Behind holds addresses of the pods behind an interface whose policies may deny them packets
// to the node.
type Behind struct {
	// OnePod is set if Addrs are the addresses of one pod, and no other pod is behind the
	// interface. Otherwise there is one address for each set of pods that the same policies
	// select.
	OnePod bool
	Addrs  []netip.Addr
}

// SetBehind replaces the pods behind interfaces, by interface index. links must contain all
// interfaces of the node and must not be modified afterwards. Before the first call,
// interfaces are ignored.
func (e *Enforcer) SetBehind(links map[uint32]Behind) { e.behind.Store(&links) }

// senders returns the pods that may have sent a packet to the node itself from a source that
// is no pod's address, such as a link-local one: the pods behind its input interface. known
// is false if the interface is not known: it may lead to any pod.
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

// podSource returns src with the address of the one pod, of the same family if it has one.
func (b Behind) podSource(src netip.AddrPort) netip.AddrPort {
	addr := b.Addrs[0]
	for _, a := range b.Addrs {
		if a.Is4() == src.Addr().Is4() {
			addr = a
		}
	}
	return netip.AddrPortFrom(addr, src.Port())
}

// severalPods reports whether more than one pod may have sent a packet.
func (b Behind) severalPods() bool { return !b.OnePod && len(b.Addrs) > 0 }

// evaluate evaluates a packet that one of several pods has sent: it denies the packet if the
// policies of any of them do. Learned names are ignored, because they hold for one pod only.
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
