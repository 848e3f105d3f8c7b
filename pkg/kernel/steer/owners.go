package steer

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
)

// Owner is the pod whose connections the kernel may track under an address.
type Owner struct {
	Addr netip.Addr
	// Pod identifies the pod.
	Pod uint32
}

// Owners returns the owners that an earlier agent stored in the kernel, if any, in no particular
// order. It must be called before the first Set.
func (s *Steerer) Owners(ctx context.Context) ([]Owner, error) {
	stored, err := s.kernel.owners(ctx)
	if err != nil {
		return nil, fmt.Errorf("read sets of owners: %w", err)
	}
	owners := make([]Owner, 0, len(stored))
	for _, e := range stored {
		if e.prefix.IsSingleIP() && e.number != 0 {
			owners = append(owners, Owner{e.prefix.Addr(), e.number})
		}
	}
	return owners, nil
}

// ownersSpecs are the sets of owners.
func ownersSpecs() []setSpec {
	return slices.DeleteFunc(slices.Clone(setSpecs), func(s setSpec) bool { return s.name != familyName(ownersSet, s.ipv6) })
}
