package netns

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/tests/lab"
	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// atOnce bounds the attempts in flight. Those that are denied wait and cost
// nothing, so that a table is as fast as one silence.
const atOnce = 1000

// outcomes translates what the lab says.
var outcomes = map[lab.Outcome]netpol.Outcome{
	lab.TimedOut:  netpol.TimedOut,
	lab.Refused:   netpol.Refused,
	lab.Connected: netpol.Connected,
}

// probe makes an attempt for each connection.
func (n *network) probe(ctx context.Context, connections []netpol.Connection, silence time.Duration) ([]netpol.Outcome, error) {
	results := make([]netpol.Outcome, len(connections))
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i, connection := range connections {
		group.Go(func() (err error) {
			results[i], err = n.connect(ctx, connection, silence)
			if err != nil {
				err = fmt.Errorf("%s: %w", connection, err)
			}
			return err
		})
	}
	return results, group.Wait()
}

// connect makes one attempt. What cannot be made is Unobservable; an answer of the
// wrong one is an error of the lab.
func (n *network) connect(ctx context.Context, c netpol.Connection, silence time.Duration) (netpol.Outcome, error) {
	from, to, addr := n.ends(c)
	if from == nil || to == nil || !addr.IsValid() {
		return netpol.Unobservable, nil
	}
	if c.Protocol == corev1.ProtocolSCTP {
		return sendInit(ctx, from, to, netip.AddrPortFrom(addr, uint16(c.Port)), silence)
	}
	answer, err := from.Probe(ctx, lab.Proto(c.Protocol), netip.AddrPortFrom(addr, uint16(c.Port)), silence)
	if err != nil {
		return netpol.Unobservable, nil
	}
	if answer.From != "" && answer.From != to.Name {
		return netpol.Unobservable, fmt.Errorf("%s answered", answer.From)
	}
	return outcomes[answer.Outcome], nil
}

// ends returns both ends, and the address that the connection is made to.
func (n *network) ends(c netpol.Connection) (from, to *host, addr netip.Addr) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	from, to = n.hosts[c.From], n.hosts[c.To]
	if to == nil {
		return from, nil, netip.Addr{}
	}
	addr = to.Addr(families[c.Family])
	if service := n.services[addr]; c.Via == netpol.Service && service.IsValid() {
		addr = service
	}
	return from, to, addr
}

var families = map[corev1.IPFamily]lab.Family{corev1.IPv4Protocol: lab.IPv4, corev1.IPv6Protocol: lab.IPv6}
