package enforce

import (
	"net/netip"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// senders returns the pods that may have sent a packet to the node itself from a source that
// is no pod's address, such as a link-local one: those behind its input interface. known
// is false if the interface is not known: it may lead to any pod.
func (e *Enforcer) senders(p *packet.Packet, in *Input, s *policy.Snapshot, auditOnly bool) (pods Behind, known bool) {
	if !in.ToHost || in.Link == 0 || auditOnly || s.IsLocal(p.Src.Addr()) {
		return Behind{}, true
	}
	i := e.interfaces.Load()
	if i == nil {
		return Behind{}, true
	}
	pods, known = i.Links[in.Link]
	return pods, known
}

// toHost returns src with the address of the pod that sends to the node from it, src if there is none or
// its policies deny it nothing.
func (b *Behind) toHost(src netip.AddrPort) netip.AddrPort {
	if len(b.ToHost) == 0 || len(b.Pod) == 0 {
		return src
	}
	return netip.AddrPortFrom(oneOf(b.Pod, src.Addr()), src.Port())
}

// severalToHost reports whether more than one pod may have sent a packet to the node.
func (b *Behind) severalToHost() bool { return len(b.Pod) == 0 && len(b.ToHost) > 0 }

// evaluate evaluates a packet to the node that one of several pods has sent: it denies the packet if
// the policies of any of them do. Learned names are ignored, because they hold for one pod only.
func (b *Behind) evaluate(s *policy.Snapshot, q policy.Query) (d policy.Decision) {
	q.Learned = nil
	for _, pod := range b.ToHost {
		q.Packet.Src = netip.AddrPortFrom(pod, q.Packet.Src.Port())
		if d = s.Evaluate(q); !d.Allowed() {
			return d
		}
	}
	return d
}
