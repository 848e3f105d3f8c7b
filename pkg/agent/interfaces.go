package agent

import (
	"maps"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/agent/enforce"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/links"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer"
)

// setInterfaces makes packets be evaluated by the pods behind interfaces. If the node routes other
// addresses to pods than before, established connections are evaluated again.
func (a *agent) setInterfaces(i *enforce.Interfaces) {
	before := a.enforcer.Interfaces()
	a.enforcer.SetInterfaces(i)
	if !slices.Equal(routesOf(before), routesOf(i)) {
		a.blocker.Recheck()
	}
}

func routesOf(i *enforce.Interfaces) []enforce.Route {
	if i == nil {
		return nil
	}
	return i.Routes
}

// podLinks adds the interfaces of pods that policies select to sets. It returns what is behind each
// interface in all.
func podLinks(sets *steer.Sets, s *policy.Snapshot, leads []links.Lead, all []uint32) *enforce.Interfaces {
	behind := make(map[uint32]enforce.Behind, len(all))
	for _, index := range all {
		behind[index] = enforce.Behind{}
	}
	for _, lead := range leads {
		b := behindLink(s, lead)
		for _, f := range sets.Forwards {
			if slices.Contains(f.Links, lead.Name) {
				b.Forwards = f.Sources
			}
		}
		behind[lead.Index] = b
		addName(&sets.HostLinks, lead.Name, len(b.ToHost) > 0)
		addName(&sets.MulticastLinks, lead.Name, len(b.Receivers) > 0)
		addName(&sets.IngressLinks, lead.Name, anySelected(b.Pod, s.Selected(policy.Ingress)))
		addName(&sets.EgressLinks, lead.Name, anySelected(b.Pod, s.Selected(policy.Egress)))
	}
	return &enforce.Interfaces{Links: behind}
}

// addName adds name to a sorted list on condition.
func addName(names *[]string, name string, on bool) {
	if !on {
		return
	}
	i, found := slices.BinarySearch(*names, name)
	if !found {
		*names = slices.Insert(*names, i, name)
	}
}

// anySelected reports whether one of the addresses of a pod is selected.
func anySelected(pod, selected []netip.Addr) bool {
	return slices.ContainsFunc(pod, func(a netip.Addr) bool { return isIn(selected, a) })
}

// isIn reports whether sorted addresses have a.
func isIn(sorted []netip.Addr, a netip.Addr) bool {
	_, found := slices.BinarySearchFunc(sorted, a, netip.Addr.Compare)
	return found
}

// behindLink returns the pods behind an interface.
func behindLink(s *policy.Snapshot, lead links.Lead) enforce.Behind {
	b := enforce.Behind{Single: lead.Pair}
	if isSingle(s, lead) {
		b.Pod, b.Name = lead.Pods, lead.Name
	}
	b.ToHost = oneOfEach(s, lead.Pods, policy.Egress, s.SelectedToHost())
	b.Receivers = oneOfEach(s, lead.Pods, policy.Ingress, s.Selected(policy.Ingress))
	return b
}

// isSingle reports whether an interface leads to one pod only.
func isSingle(s *policy.Snapshot, lead links.Lead) bool {
	first := func(a netip.Addr) bool { return s.Endpoint(a) == s.Endpoint(lead.Pods[0]) }
	return lead.Pair && len(lead.Pods) > 0 && !slices.ContainsFunc(lead.Pods, func(a netip.Addr) bool { return !first(a) })
}

// oneOfEach returns the selected addresses among pods, one for each chain of policies.
func oneOfEach(s *policy.Snapshot, pods []netip.Addr, d policy.Direction, selected []netip.Addr) (some []netip.Addr) {
	chains := map[*policy.Chain]bool{}
	for _, addr := range pods {
		e := s.Endpoint(addr)
		chain := e.Egress
		if d == policy.Ingress {
			chain = e.Ingress
		}
		if isIn(selected, addr) && !chains[chain] {
			chains[chain] = true
			some = append(some, addr)
		}
	}
	return some
}

// singles returns the indices of the interfaces that lead to a single pod.
func singles(behind map[uint32]enforce.Behind) (indices []uint32) {
	for index, b := range behind {
		if len(b.Pod) > 0 {
			indices = append(indices, index)
		}
	}
	return indices
}

// linkless returns how many pods that policies select have no interface that leads to them, and how
// many share theirs.
func linkless(s *policy.Snapshot, leads []links.Lead) (unknown, shared int) {
	pods := map[*policy.Endpoint]bool{} // whether an interface leads to it
	for _, addr := range slices.Concat(s.SelectedToHost(), s.Selected(policy.Ingress), s.Selected(policy.Egress)) {
		pods[s.Endpoint(addr)] = false
	}
	alone := map[*policy.Endpoint]bool{}
	for _, lead := range leads {
		for _, addr := range lead.Pods {
			e := s.Endpoint(addr)
			if _, selected := pods[e]; selected {
				pods[e] = true
				alone[e] = alone[e] || isSingle(s, lead)
			}
		}
	}
	for e := range maps.Keys(pods) {
		switch {
		case !pods[e]:
			unknown++
		case !alone[e]:
			shared++
		}
	}
	return unknown, shared
}
