package agent

import (
	"context"

	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/conntrack"
)

// connections calls yield with each tracked connection that the current snapshot allows, and
// its decision. It reports whether the kernel counts bytes.
func (a *agent) connections(ctx context.Context, yield func(*module.Connection)) (counted bool, err error) {
	counted, err = conntrack.Traffic(ctx, func(first packet.Packet, toHost bool, bytes uint64) {
		d, would, s := a.enforcer.EvaluateOpened(first, toHost)
		if s != nil && d.Allowed() {
			yield(&module.Connection{Packet: first, Decision: d, Would: would, Snapshot: s, Bytes: bytes})
		}
	})
	if err != nil {
		a.logger.Error(err, "Bytes of connections are not known")
	}
	return counted, err
}
