package enforce

import (
	"net/netip"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/agent/event"
	"sigs.k8s.io/kube-network-policies/pkg/agent/packets"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// counting returns the tap that counts and logs packets.
func counting(reg prometheus.Registerer, logger logr.Logger) []event.Tap {
	return []event.Tap{packets.New(reg, logger).Tap}
}

// wanting returns a tap that collects the addresses that packets begin to wait for.
func wanting(to *[]netip.Addr) []event.Tap {
	return []event.Tap{func(ev *event.Event) { ev.Wanted(func(a netip.Addr) { *to = append(*to, a) }) }}
}

// accepting returns a tap that calls yield for each accepted packet.
func accepting(yield func(p packet.Packet, eitherWay bool)) event.Tap {
	return func(ev *event.Event) {
		if ev.Accepted() {
			yield(ev.Packet, ev.EitherWay)
		}
	}
}
