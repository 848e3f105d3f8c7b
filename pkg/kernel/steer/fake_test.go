package steer

import (
	"context"
	"sync/atomic"
	"testing"

	"sigs.k8s.io/knftables"
)

// fakeOf returns the Fake that nft is or wraps.
func fakeOf(t *testing.T, nft knftables.Interface) *knftables.Fake {
	t.Helper()
	switch nft := nft.(type) {
	case *knftables.Fake:
		return nft
	case *broken:
		return nft.Fake
	case *recorder:
		return nft.Fake
	case *hanging:
		return nft.Fake
	}
	t.Fatalf("%T has no Fake", nft)
	return nil
}

// hanging blocks transactions until their context ends while hang is set. Until deaf is closed, it
// ignores the context, as a system call in the kernel may.
type hanging struct {
	*knftables.Fake
	hang atomic.Bool
	deaf atomic.Pointer[chan struct{}]
}

func (h *hanging) Run(ctx context.Context, tx *knftables.Transaction) error {
	if deaf := h.deaf.Load(); deaf != nil {
		<-*deaf
	}
	if h.hang.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	return h.Fake.Run(ctx, tx)
}
