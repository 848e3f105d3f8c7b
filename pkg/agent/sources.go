package agent

import (
	"errors"
	"net/netip"
	"slices"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/enforce"
	"sigs.k8s.io/kube-network-policies/pkg/links"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
	"sigs.k8s.io/kube-network-policies/pkg/steer"
)

// EveryInterface in Config.SourceCheckExempt exempts all interfaces, also those that do
// not exist yet.
const EveryInterface = "*"

// newLinks returns a watcher of the interfaces that lead to pods, nil if the sources of
// packets are not checked.
func newLinks(cfg Config, caps steer.Capabilities, changed func(), logger klog.Logger) (*links.Watcher, error) {
	if slices.Contains(cfg.SourceCheckExempt, EveryInterface) {
		return nil, nil
	}
	if err := caps.SourceCheck; errors.Is(err, errors.ErrUnsupported) {
		logger.Error(err, "Sources of packets are not checked: pods can send with addresses that are not theirs")
		return nil, nil
	}
	return links.New(links.Config{Exempt: cfg.SourceCheckExempt, Changed: changed})
}

// checkSources enables the check of sources while a policy selects a pod of this node,
// or may select one that is not known yet. It returns the interfaces that lead to pods.
func (a *agent) checkSources(sets *steer.Sets, s *policy.Snapshot) []links.Lead {
	uplinks, bridges, known := a.links.Names(sets.Pods)
	selects := len(sets.Ingress)+len(sets.Egress)+len(sets.ToHost)+len(sets.IngressRanges)+len(sets.EgressRanges)+len(sets.ToHostRanges) > 0
	if !known || !selects {
		a.enforcer.SetBehind(nil)
		a.forwarding.report(0, nil)
		return nil
	}
	sets.CheckSources, sets.Unchecked, sets.Bridges = true, uplinks, bridges
	leads, all := a.links.Leads(sets.Pods, uplinks)
	names, behind := hostLinks(s, leads, all)
	sets.HostLinks = names
	a.enforcer.SetBehind(behind)
	a.otherPorts = a.links.OtherPorts(bridges)
	a.closeTunnels(sets)
	pods := s.Forwarders()
	allowed, refused := forwards(pods, func(pod []netip.Addr) string { return a.links.OwnLink(pod, sets.Pods) })
	sets.Forwards = allowed
	a.forwarding.report(len(pods)-len(refused), refused)
	return leads
}

// hostLinks returns the names of the interfaces that lead to some pod whose packets to the node
// are evaluated, and what is behind each of all interfaces.
func hostLinks(s *policy.Snapshot, leads []links.Lead, all []uint32) (names []string, behind map[uint32]enforce.Behind) {
	behind = make(map[uint32]enforce.Behind, len(all))
	for _, index := range all {
		behind[index] = enforce.Behind{}
	}
	for _, lead := range leads {
		if b := behindLink(s, lead); len(b.Addrs) > 0 {
			names = append(names, lead.Name)
			behind[lead.Index] = b
		}
	}
	slices.Sort(names)
	return names, behind
}

// behindLink returns what is behind an interface. Of several pods that the same policies select,
// one is enough.
func behindLink(s *policy.Snapshot, lead links.Lead) (b enforce.Behind) {
	first := s.Endpoint(lead.Pods[0])
	b.OnePod = lead.Pair && !slices.ContainsFunc(lead.Pods, func(a netip.Addr) bool { return s.Endpoint(a) != first })
	chains := map[*policy.Chain]bool{}
	for _, addr := range lead.Pods {
		chain := s.Endpoint(addr).Egress
		_, toHost := slices.BinarySearchFunc(s.SelectedToHost(), addr, netip.Addr.Compare)
		if toHost && (b.OnePod || !chains[chain]) {
			chains[chain] = true
			b.Addrs = append(b.Addrs, addr)
		}
	}
	return b
}

// linkless returns how many pods whose packets to the node are evaluated no interface leads to.
func linkless(s *policy.Snapshot, leads []links.Lead) int {
	pods := map[*policy.Endpoint]bool{}
	for _, addr := range s.SelectedToHost() {
		pods[s.Endpoint(addr)] = true
	}
	for _, lead := range leads {
		for _, addr := range lead.Pods {
			delete(pods, s.Endpoint(addr))
		}
	}
	return len(pods)
}
