package backend

import (
	"context"
	"fmt"
	"net/netip"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
)

// atOnce limits the concurrent attempts. Denied attempts only wait, so a table hardly takes
// longer than one timeout.
const atOnce = 1000

// outcomes converts outcomes of the lab.
var outcomes = map[lab.Outcome]netpol.Outcome{
	lab.TimedOut:  netpol.TimedOut,
	lab.Refused:   netpol.Refused,
	lab.Connected: netpol.Connected,
}

// Source ports of clients. Each call of probe uses the next ones, so that no attempt
// belongs to a UDP flow that was accepted earlier and that the nodes still remember.
const (
	firstPort = 10000
	lastPort  = 29000 // scenarios serve higher ports, on which nothing can listen while clients have them
	minPorts  = 128   // of one call
)

// udpTimeout is how long nodes remember a UDP flow, in seconds. It is shorter than the
// kernel's default of 30, so that flows are forgotten before source ports are reused.
const udpTimeout = "10"

// nextPorts assigns the next source ports to all hosts, twice as many as they need.
func (n *network) nextPorts(connections []netpol.Connection) error {
	needed := make(map[string]int)
	ports := minPorts
	for _, c := range connections {
		needed[c.From]++
		ports = max(ports, 2*needed[c.From])
	}
	if n.port < firstPort || n.port+ports > lastPort {
		n.port = firstPort
	}
	ports = min(ports, lastPort-firstPort)
	n.mu.RLock()
	defer n.mu.RUnlock()
	for name, h := range n.hosts {
		if err := h.Set("ipv4/ip_local_port_range", fmt.Sprintf("%d %d", n.port, n.port+ports-1)); err != nil {
			return fmt.Errorf("source ports of %s: %w", name, err)
		}
	}
	n.port += ports
	return nil
}

// probe makes an attempt for each connection.
func (n *network) probe(ctx context.Context, connections []netpol.Connection) ([]netpol.Outcome, error) {
	if err := n.nextPorts(connections); err != nil {
		return nil, err
	}
	results := make([]netpol.Outcome, len(connections))
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i, connection := range connections {
		group.Go(func() (err error) {
			results[i], err = n.connect(ctx, connection)
			if err != nil {
				err = fmt.Errorf("%s: %w", connection, err)
			}
			return err
		})
	}
	return results, group.Wait()
}

// connect makes one attempt. An attempt that cannot be made is Unobservable. An answer of
// the wrong host is an error of the lab.
func (n *network) connect(ctx context.Context, c netpol.Connection) (netpol.Outcome, error) {
	from, to, at := n.ends(c)
	if from == nil || to == nil || !at.IsValid() {
		return netpol.Unobservable, nil
	}
	if c.Protocol == corev1.ProtocolSCTP {
		return associate(ctx, from, at, c.Silence)
	}
	answer, err := from.Probe(ctx, lab.Proto(c.Protocol), at, c.Silence)
	if err != nil {
		return netpol.Unobservable, nil
	}
	if answer.From != "" && answer.From != to.Name {
		return netpol.Unobservable, fmt.Errorf("%s answered", answer.From)
	}
	return outcomes[answer.Outcome], nil
}

// ends returns both ends, and the destination of the connection.
func (n *network) ends(c netpol.Connection) (from, to *host, at netip.AddrPort) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	from, to = n.hosts[c.From], n.hosts[c.To]
	if to == nil {
		return from, nil, netip.AddrPort{}
	}
	return from, to, n.to(to, c)
}
