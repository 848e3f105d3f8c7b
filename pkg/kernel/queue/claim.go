package queue

import (
	"context"
	"errors"
	"io"
	"time"

	"golang.org/x/sys/unix"
)

// claimBuffer is the receive buffer of a claim. Nothing is sent to it.
const claimBuffer = 4096

// Numbers are the queue numbers of a kernel.
type Numbers struct{ Kernel }

// Claim binds a number for its own sake, until the claim is closed or the process ends: no other
// process can bind it, and all processes of the network namespace see that it is bound. Packets
// that are sent to it are dropped. The error wraps ErrTaken when another process has bound it.
func (n Numbers) Claim(ctx context.Context, number uint16) (io.Closer, error) {
	cfg := Config{First: number, Count: 1, MaxLen: 1, ReceiveBuffer: claimBuffer}.withDefaults()
	for attempt := 1; ; attempt++ {
		sock, err := n.Bind(ctx, number, cfg)
		// As in bind: another process may be loading the module.
		if !errors.Is(err, unix.EINVAL) || attempt == bindAttempts {
			if err != nil {
				return nil, err
			}
			return sock, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(bindEvery):
		}
	}
}
