package policy

import (
	"net/netip"

	"github.com/gaissmai/bart"
)

// PodRanges are the addresses that pods of any node may have. They are immutable. Nil is empty.
type PodRanges struct {
	pods bart.Table[bool] // false for addresses of nodes
}

// NewPodRanges returns the ranges minus the addresses of nodes.
func NewPodRanges(ranges []netip.Prefix, nodes []netip.Addr) *PodRanges {
	r := &PodRanges{}
	for _, p := range ranges {
		r.pods.Insert(p, true)
	}
	for _, a := range nodes {
		r.pods.Insert(netip.PrefixFrom(a, a.BitLen()), false)
	}
	return r
}

// any reports whether there is a range.
func (r *PodRanges) any() bool { return r != nil && r.pods.Size() > 0 }

func (r *PodRanges) contain(a netip.Addr) bool {
	if r == nil {
		return false
	}
	pods, _ := r.pods.Lookup(a)
	return pods
}
