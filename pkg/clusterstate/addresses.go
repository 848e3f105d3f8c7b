package clusterstate

import (
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// addresses knows which pod owns which address. Addresses are reused while the API
// still shows who had them before, so several pods can claim one.
type addresses struct {
	owners policy.Endpoints
	edit   *policy.EndpointsEdit // nil while nothing changes
	// contested are the claims to addresses that have several.
	contested map[netip.Addr][]*compile.Pod
	settled   bool // an address was or had been contested since this was last reset

	// occupied counts the addresses with an owner in each prefix of forwarded packets, nil
	// while they are not counted.
	occupied         map[netip.Prefix]int
	occupancyChanged bool // a prefix has got its first address or lost its last one
}

func (a *addresses) change() *policy.EndpointsEdit {
	if a.edit == nil {
		a.edit = a.owners.Edit()
	}
	return a.edit
}

// current ends the changes under way and returns the owners.
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

// owns reports whether p is the owner of addr.
func (a *addresses) owns(p *compile.Pod, addr netip.Addr) bool { return a.at(addr) == &p.Endpoint }

// replace replaces the claims of old by those of now. Either may be
// nil. pod finds the pod of an endpoint.
func (a *addresses) replace(old, now *compile.Pod, pod func(*policy.Endpoint) *compile.Pod) {
	if old != nil {
		for _, addr := range old.Claims() {
			if now == nil || !slices.Contains(now.Claims(), addr) {
				a.settle(addr, a.others(addr, old, pod))
			}
		}
	}
	if now != nil {
		for _, addr := range now.Claims() {
			a.settle(addr, append(a.others(addr, old, pod), now))
		}
	}
}

// others returns the claims to addr of pods other than p.
func (a *addresses) others(addr netip.Addr, p *compile.Pod, pod func(*policy.Endpoint) *compile.Pod) []*compile.Pod {
	if claims := a.contested[addr]; claims != nil {
		return slices.DeleteFunc(slices.Clone(claims), func(c *compile.Pod) bool { return c == p })
	}
	if owner := a.at(addr); owner != nil && (p == nil || owner != &p.Endpoint) {
		return []*compile.Pod{pod(owner)}
	}
	return nil
}

// settle gives addr to the best of its claims.
func (a *addresses) settle(addr netip.Addr, claims []*compile.Pod) {
	if len(claims) > 1 {
		a.contested[addr], a.settled = claims, true
	} else if a.contested[addr] != nil {
		delete(a.contested, addr)
		a.settled = true
	}
	var owner *policy.Endpoint
	var best *compile.Pod
	for _, p := range claims {
		if best == nil || p.TakesOver(best) {
			best, owner = p, &p.Endpoint
		}
	}
	a.note(addr, owner)
	a.change().Set(addr, owner)
}
