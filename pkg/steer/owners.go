package steer

import (
	"context"
	"fmt"
	"net/netip"

	"sigs.k8s.io/knftables"
)

// Owner is the pod whose connections the kernel may track under an address.
type Owner struct {
	Addr netip.Addr
	// Pod tells pods apart.
	Pod uint32
}

// Owners returns what an earlier agent kept in the kernel, in no order: nothing on
// a node on which none has run. To be asked before the first wish.
func (s *Steerer) Owners(ctx context.Context) ([]Owner, error) {
	var owners []Owner
	for _, f := range families {
		name := familyName(ownersSet, f.ipv6)
		listed, err := s.nft.ListElements(ctx, "set", name)
		if knftables.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read set %s: %w", name, err)
		}
		for _, l := range listed {
			// What cannot be read is not ours, and is replaced by the first wish.
			if e, ok := parseElement(l.Key); ok && e.prefix.IsSingleIP() && e.with != 0 {
				owners = append(owners, Owner{e.prefix.Addr(), e.with})
			}
		}
	}
	return owners, nil
}
