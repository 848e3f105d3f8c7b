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
	// Pod identifies the pod.
	Pod uint32
}

// Owners returns the owners that an earlier agent has stored in the kernel, in no
// order, nothing if there was none. It must be called before the first Set.
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
			// Malformed elements are not ours, and the first desired state replaces them.
			if e, ok := parseElement(l.Key); ok && e.prefix.IsSingleIP() && e.number != 0 {
				owners = append(owners, Owner{e.prefix.Addr(), e.number})
			}
		}
	}
	return owners, nil
}
