package queue

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/florianl/go-nfqueue/v2"
	"golang.org/x/sys/unix"
)

// Host is the kernel of this machine, in the network namespace of the calling thread.
type Host struct{}

// Stats implements Kernel.
func (Host) Stats() ([]Stat, error) { return readStats(statsPath) }

// NewPoller implements Kernel.
func (Host) NewPoller() (Poller, error) {
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	return &poller{event: event}, nil
}

// Bind implements Kernel and needs CAP_NET_ADMIN. The library opens, configures and binds the
// socket, which is then taken over.
func (Host) Bind(ctx context.Context, number uint16, cfg Config) (Socket, error) {
	nfq, err := nfqueue.Open(&nfqueue.Config{
		NfQueue:     number,
		MaxQueueLen: cfg.MaxLen,
		// If packets arrived now, the library would take one of them for the
		// acknowledgement of its next configuration message, and fail.
		Copymode: nfqueue.NfQnlCopyNone,
		Flags:    flags(cfg),
		AfFamily: unix.AF_UNSPEC,
	})
	if err != nil {
		return nil, fmt.Errorf("open queue %d: %w", number, err)
	}
	s, err := bind(ctx, nfq, number, cfg.ReceiveBuffer)
	if cerr := nfq.Close(); err == nil && cerr != nil {
		err = errors.Join(cerr, s.Close())
	}
	switch {
	case errors.Is(err, ErrTaken):
		return nil, fmt.Errorf("queue %d is %w", number, err)
	case err != nil:
		return nil, fmt.Errorf("bind queue %d: %w", number, err)
	}
	return s, nil
}

func flags(cfg Config) uint32 {
	// Without GSO the kernel segments packets before it queues them, which damages SCTP.
	var flags uint32 = nfqueue.NfQaCfgFlagGSO
	if cfg.FailOpen {
		flags |= nfqueue.NfQaCfgFlagFailOpen
	}
	return flags
}
