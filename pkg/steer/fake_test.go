package steer

import (
	"context"
	"testing"

	"sigs.k8s.io/knftables"
)

// fakeOf finds the Fake behind what interferes.
func fakeOf(t *testing.T, nft knftables.Interface) *knftables.Fake {
	t.Helper()
	switch nft := nft.(type) {
	case *knftables.Fake:
		return nft
	case *broken:
		return nft.Fake
	case *diary:
		return nft.Fake
	case *hanging:
		return nft.Fake
	}
	t.Fatalf("%T has no Fake", nft)
	return nil
}

// hanging blocks transactions until their context ends while hang is set, or longer,
// as the kernel may, until deaf is closed.
type hanging struct {
	*knftables.Fake
	hang bool
	deaf chan struct{}
}

func (h *hanging) Run(ctx context.Context, tx *knftables.Transaction) error {
	if h.deaf != nil {
		<-h.deaf
	}
	if h.hang {
		<-ctx.Done()
		return ctx.Err()
	}
	return h.Fake.Run(ctx, tx)
}
