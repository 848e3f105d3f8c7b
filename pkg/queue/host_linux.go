package queue

import (
	"context"
	"errors"
	"fmt"

	"github.com/florianl/go-nfqueue/v2"
	"golang.org/x/sys/unix"
)

// host is the kernel of this machine.
type host struct{}

// Stats implements Kernel.
func (host) Stats() ([]Stat, error) { return readStats(statsPath) }

// Bind implements Kernel. The library opens, configures and binds; then the
// socket is ours alone.
func (host) Bind(ctx context.Context, number uint16, cfg Config) (Socket, error) {
	nfq, err := nfqueue.Open(&nfqueue.Config{
		NfQueue:     number,
		MaxQueueLen: cfg.MaxLen,
		// With packets on their way the library would take one of them for
		// the acknowledgement of its next configuration message, and fail.
		Copymode: nfqueue.NfQnlCopyNone,
		Flags:    flags(cfg),
		AfFamily: unix.AF_UNSPEC,
	})
	if err != nil {
		return nil, fmt.Errorf("open queue %d: %w", number, err)
	}
	s := newSocket(nfq)
	if err := s.bind(ctx, number, cfg.ReceiveBuffer); err != nil {
		return nil, errors.Join(fmt.Errorf("bind queue %d: %w", number, err), s.Close())
	}
	return s, nil
}

func flags(cfg Config) uint32 {
	// Without GSO the kernel segments packets before it queues them, and
	// damages SCTP.
	var flags uint32 = nfqueue.NfQaCfgFlagGSO
	if cfg.FailOpen {
		flags |= nfqueue.NfQaCfgFlagFailOpen
	}
	return flags
}
