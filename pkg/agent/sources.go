package agent

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/agent/enforce"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/bridgefilter"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/links"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer"
)

// EveryInterface in Config.SourceCheckExempt exempts all interfaces, also those that do
// not exist yet.
const EveryInterface = "*"

// sources decides which source addresses are checked, by the interfaces that lead to pods.
type sources struct {
	checked bool // if false, interfaces are never read
	links   *links.Watcher
	bridges *bridgefilter.Filter

	setBehind  func(map[uint32]enforce.Behind)
	forwarding *forwarding
	linkless   prometheus.Gauge

	tunnelPorts []uint16
	podTunnels  PodTunnels
	otherPorts  []string // of bridges without pods
}

// newSources returns sources that call changed when interfaces or routes change, and setBehind
// with the pods behind each interface.
func newSources(cfg Config, caps steer.Capabilities, changed func(), setBehind func(map[uint32]enforce.Behind), reg prometheus.Registerer, logger klog.Logger) (s *sources, err error) {
	s = &sources{
		checked:     cfg.checksSources(caps, logger),
		setBehind:   setBehind,
		forwarding:  newForwarding(reg, logger),
		tunnelPorts: cfg.TunnelPorts,
		podTunnels:  cfg.PodTunnels,
		linkless: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "netpol_pods_without_interface",
			Help: "Pods of this node whose packets to the node from addresses that are not theirs are not evaluated, though a policy may deny them: no checked interface is known to lead to the pods.",
		}),
	}
	reg.MustRegister(s.linkless)
	watched := links.Config{Exempt: cfg.SourceCheckExempt, Changed: changed}
	if !s.checked {
		watched, reg = links.Config{}, prometheus.NewRegistry() // nothing runs, so there is nothing to export
	}
	if s.links, err = links.New(watched); err != nil {
		return nil, err
	}
	s.bridges, err = bridgefilter.New(reg)
	return s, err
}

func (c Config) checksSources(caps steer.Capabilities, logger klog.Logger) bool {
	if slices.Contains(c.SourceCheckExempt, EveryInterface) {
		return false
	}
	if err := caps.SourceCheck; errors.Is(err, errors.ErrUnsupported) {
		logger.Error(err, "Sources of packets are not checked: pods can send with addresses that are not theirs")
		return false
	}
	return true
}

// read reads interfaces and routes before the first snapshot needs them.
func (s *sources) read(ctx context.Context) {
	if err := s.links.Read(); err != nil {
		klog.FromContext(ctx).Error(err, "Sources of packets are not checked until interfaces and routes can be read")
	}
}

// addSets adds the sets for the source check while snapshot is enforced.
func (s *sources) addSets(sets *steer.Sets, snapshot *policy.Snapshot) {
	s.linkless.Set(float64(linkless(snapshot, s.check(sets, snapshot))))
}

// check enables the source check while a policy selects a pod of this node, or may select one
// that is not known yet. It returns the interfaces that lead to pods.
func (s *sources) check(sets *steer.Sets, snapshot *policy.Snapshot) []links.Lead {
	uplinks, bridges, known := s.links.Names(sets.Pods)
	selects := len(sets.Ingress)+len(sets.Egress)+len(sets.ToHost)+len(sets.IngressRanges)+len(sets.EgressRanges)+len(sets.ToHostRanges) > 0
	if !known || !selects {
		s.setBehind(nil)
		s.forwarding.report(0, nil)
		return nil
	}
	sets.CheckSources, sets.Unchecked, sets.Bridges = true, uplinks, bridges
	leads, all := s.links.Leads(sets.Pods, uplinks)
	names, behind := hostLinks(snapshot, leads, all)
	sets.HostLinks = names
	s.setBehind(behind)
	s.otherPorts = s.links.OtherPorts(bridges)
	s.closeTunnels(sets)
	pods := snapshot.Forwarders()
	allowed, refused := forwards(pods, func(pod []netip.Addr) string { return s.links.OwnLink(pod, sets.Pods) })
	sets.Forwards = allowed
	s.forwarding.report(len(pods)-len(refused), refused)
	return leads
}

// filterBridges filters frames at bridges that pods are attached to.
func (s *sources) filterBridges(bridges []string) { s.bridges.Set(len(bridges) > 0, s.otherPorts) }

// hostLinks returns the names of interfaces that lead to pods whose packets to the node are
// evaluated, and for each interface in all the pods behind it.
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

// behindLink returns the pods behind an interface, only one of those that the same policies
// select.
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

// linkless returns how many pods whose packets to the node are evaluated have no interface that
// leads to them.
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
