package queue

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// claimBuffer is the receive buffer of a Claim. Nothing is sent to it.
const claimBuffer = 4096

// A Claim is a queue number that is bound for its own sake: no other process can bind it,
// and all processes of the network namespace see that it is bound. It ends with the
// process. Packets that are sent to it are dropped.
type Claim struct{ sock Socket }

// NewClaim binds a number. The error wraps ErrTaken when another process has bound it.
func NewClaim(ctx context.Context, kernel Kernel, number uint16) (*Claim, error) {
	cfg := Config{First: number, Count: 1, MaxLen: 1, ReceiveBuffer: claimBuffer}.withDefaults()
	for attempt := 1; ; attempt++ {
		sock, err := kernel.Bind(ctx, number, cfg)
		// As in bind: another process may be loading the module.
		if !errors.Is(err, unix.EINVAL) || attempt == bindAttempts {
			if err != nil {
				return nil, err
			}
			return &Claim{sock}, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(bindEvery):
		}
	}
}

// Close frees the number.
func (c *Claim) Close() error { return c.sock.Close() }
