package backend

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/tests/cluster/prober/held"
	"sigs.k8s.io/kube-network-policies/tests/netpol"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
)

// Source ports of held connections, beside those of probes. A node that blocks a connection drops its
// end, too, and still has the connection in its table when a probe would use the port again.
const (
	firstHeldPort = 33000
	heldPorts     = 16000
)

// Hold opens connections and keeps them busy.
func (b *Backend) Hold(ctx context.Context, connections []netpol.Connection) (netpol.Held, error) {
	h := &holding{conns: make([]*held.Conn, len(connections))}
	var group errgroup.Group
	for i, c := range connections {
		group.Go(func() (err error) {
			if h.conns[i], err = b.network.hold(ctx, c); err != nil {
				err = fmt.Errorf("%s: %w", c, err)
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// holding are connections that are open until Close.
type holding struct{ conns []*held.Conn }

func (h *holding) Silent(context.Context) ([]time.Duration, error) {
	silent := make([]time.Duration, len(h.conns))
	for i, c := range h.conns {
		silent[i] = c.Silent()
	}
	return silent, nil
}

func (h *holding) Close() {
	for _, c := range h.conns {
		if c != nil {
			c.Close()
		}
	}
}

// hold opens a connection and waits for its first answer.
func (n *network) hold(ctx context.Context, c netpol.Connection) (*held.Conn, error) {
	from, to, at := n.ends(c)
	if from == nil || to == nil || !at.IsValid() {
		return nil, errors.New("no such connection")
	}
	ctx, cancel := context.WithTimeout(ctx, c.Silence)
	defer cancel()
	port := uint16(firstHeldPort + n.held.Add(1)%heldPorts)
	conn, err := from.Dial(ctx, lab.Proto(c.Protocol), at, bindTo(netip.AddrPortFrom(from.Addr(family(at.Addr())), port)))
	if err != nil {
		return nil, err
	}
	return held.Keep(ctx, conn)
}

// bindTo gives a socket its source.
func bindTo(src netip.AddrPort) lab.SocketOption {
	return func(fd int) error {
		var at unix.Sockaddr = &unix.SockaddrInet6{Port: int(src.Port()), Addr: src.Addr().As16()}
		if src.Addr().Is4() {
			at = &unix.SockaddrInet4{Port: int(src.Port()), Addr: src.Addr().As4()}
		}
		return os.NewSyscallError("bind", unix.Bind(fd, at))
	}
}
