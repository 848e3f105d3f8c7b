package agent

import (
	"errors"
	"net/netip"
	"slices"

	"k8s.io/klog/v2"

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
// or may select one that is not known yet.
func (a *agent) checkSources(sets *steer.Sets, s *policy.Snapshot) {
	uplinks, bridges, known := a.links.Names(sets.Pods)
	selects := len(sets.Ingress)+len(sets.Egress)+len(sets.ToHost)+len(sets.IngressRanges)+len(sets.EgressRanges) > 0
	if !known || !selects {
		a.forwarding.report(0, nil)
		return
	}
	sets.CheckSources, sets.Unchecked, sets.Bridges = true, uplinks, bridges
	a.closeTunnels(sets)
	pods := s.Forwarders()
	allowed, refused := forwards(pods, func(pod []netip.Addr) string { return a.links.OwnLink(pod, sets.Pods) })
	sets.Forwards = allowed
	a.forwarding.report(len(pods)-len(refused), refused)
}
