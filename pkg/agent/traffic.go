package agent

import (
	"context"

	"sigs.k8s.io/kube-network-policies/pkg/conntrack"
	"sigs.k8s.io/kube-network-policies/pkg/flows"
	"sigs.k8s.io/kube-network-policies/pkg/packet"
)

// connections calls yield with the connections that the kernel tracks, as the current
// snapshot decides about them. It reports whether the kernel counts their bytes.
func (a *agent) connections(ctx context.Context, yield func(*flows.Connection)) (counted bool, err error) {
	counted, err = conntrack.Traffic(ctx, func(first packet.Packet, toHost bool, bytes uint64) {
		d, would, s := a.enforcer.EvaluateOpened(first, toHost)
		if s != nil && d.Allowed() {
			yield(&flows.Connection{Packet: first, Decision: d, Would: would, Snapshot: s, Bytes: bytes})
		}
	})
	if err != nil {
		a.logger.Error(err, "Bytes of connections are not known")
	}
	return counted, err
}
