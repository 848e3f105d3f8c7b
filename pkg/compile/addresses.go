package compile

import (
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// addresses tells who owns which address. Addresses are reused while the API
// still shows who had them before, so several pods can claim one.
type addresses struct {
	owners policy.Endpoints
	edit   *policy.EndpointsEdit // nil while nothing changes
	// contested are the claims to addresses that have several.
	contested map[netip.Addr][]*Pod
	settled   bool // since it was last asked, an address was or had been contested
}

func (a *addresses) change() *policy.EndpointsEdit {
	if a.edit == nil {
		a.edit = a.owners.Edit()
	}
	return a.edit
}

// current ends the changes under way and returns who owns what.
func (a *addresses) current() policy.Endpoints {
	if a.edit != nil {
		a.owners, a.edit = a.edit.Done(), nil
	}
	return a.owners
}

// at returns the owner of addr, nil if there is none.
func (a *addresses) at(addr netip.Addr) *policy.Endpoint {
	if a.edit != nil {
		return a.edit.At(addr)
	}
	return a.owners.At(addr)
}

// owns tells whether p is the owner of addr.
func (a *addresses) owns(p *Pod, addr netip.Addr) bool { return a.at(addr) == &p.Endpoint }

// replace puts the claims of now in the place of those of old. Either may be
// nil. pod finds the pod of an endpoint.
func (a *addresses) replace(old, now *Pod, pod func(*policy.Endpoint) *Pod) {
	if old != nil {
		for _, addr := range old.Addrs {
			if now == nil || !slices.Contains(now.Addrs, addr) {
				a.settle(addr, a.others(addr, old, pod))
			}
		}
	}
	if now != nil {
		for _, addr := range now.Addrs {
			a.settle(addr, append(a.others(addr, old, pod), now))
		}
	}
}

// others returns the claims to addr of pods other than p.
func (a *addresses) others(addr netip.Addr, p *Pod, pod func(*policy.Endpoint) *Pod) []*Pod {
	if claims := a.contested[addr]; claims != nil {
		return slices.DeleteFunc(slices.Clone(claims), func(c *Pod) bool { return c == p })
	}
	if owner := a.at(addr); owner != nil && (p == nil || owner != &p.Endpoint) {
		return []*Pod{pod(owner)}
	}
	return nil
}

// settle gives addr to the best of its claims.
func (a *addresses) settle(addr netip.Addr, claims []*Pod) {
	if len(claims) > 1 {
		a.contested[addr], a.settled = claims, true
	} else if a.contested[addr] != nil {
		delete(a.contested, addr)
		a.settled = true
	}
	var owner *policy.Endpoint
	var best *Pod
	for _, p := range claims {
		if best == nil || p.takesOver(best) {
			best, owner = p, &p.Endpoint
		}
	}
	a.change().Set(addr, owner)
}
