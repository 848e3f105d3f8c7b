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
	// filterBridges passes to modules whether pods are attached to bridges, and the other ports.
	filterBridges func(filters bool, otherPorts []string)

	setInterfaces func(*enforce.Interfaces)
	forwarding    *forwarding
	linkless      *prometheus.GaugeVec

	tunnelPorts []uint16
	podTunnels  PodTunnels
	otherPorts  []string // of bridges without pods
}

// newSources returns sources that call changed when interfaces or routes change, and setInterfaces
// with the pods behind them, nil while sources are not checked.
func newSources(cfg Config, caps steer.Capabilities, changed func(), setInterfaces func(*enforce.Interfaces), reg prometheus.Registerer, logger klog.Logger) (s *sources, err error) {
	s = &sources{
		checked:       cfg.checksSources(caps, logger),
		setInterfaces: setInterfaces,
		forwarding:    newForwarding(reg, logger),
		tunnelPorts:   cfg.TunnelPorts,
		podTunnels:    cfg.PodTunnels,
		linkless: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "netpol_pods_without_interface",
			Help: "Selected pods of this node that are not known to be alone behind an interface: it is unknown, or shared with other pods, as at a bridge. Packets from and to addresses that are not theirs are not evaluated as theirs.",
		}, []string{"cause"}),
	}
	reg.MustRegister(s.linkless)
	watched := links.Config{Exempt: cfg.SourceCheckExempt, Changed: changed}
	if !s.checked {
		watched = links.Config{} // nothing runs
	}
	s.links, err = links.New(watched)
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
		klog.FromContext(ctx).Error(err, "Policies are not enforced until interfaces and routes can be read: rules of an earlier agent stay, and without them new connections wait")
	}
}

// addSets adds the sets for the source check while snapshot is enforced.
func (s *sources) addSets(sets *steer.Sets, snapshot *policy.Snapshot) {
	s.reportLinkless(snapshot, s.check(sets, snapshot))
}

// check enables the source check while a policy selects a pod of this node, or may select one
// that is not known yet. It returns the interfaces that lead to pods.
func (s *sources) check(sets *steer.Sets, snapshot *policy.Snapshot) []links.Lead {
	uplinks, bridges, known := s.links.Names(sets.Pods)
	selects := len(sets.Ingress)+len(sets.Egress)+len(sets.ToHost)+len(sets.IngressRanges)+len(sets.EgressRanges)+len(sets.ToHostRanges) > 0
	if !known || !selects {
		s.setInterfaces(nil)
		s.forwarding.report(0, nil)
		return nil
	}
	sets.CheckSources, sets.Unchecked, sets.Bridges = true, uplinks, bridges
	leads, all := s.links.Leads(sets.Pods, uplinks)
	s.otherPorts = s.links.OtherPorts(bridges)
	s.closeTunnels(sets)
	pods := snapshot.Forwarders()
	allowed, refused := forwards(pods, func(pod []netip.Addr) string { return s.links.OwnLink(pod, sets.Pods) })
	sets.Forwards = allowed
	s.forwarding.report(len(pods)-len(refused), refused)
	behind := podLinks(sets, snapshot, leads, all)
	for _, d := range s.links.Destinations(singles(behind.Links), sets.Pods) {
		behind.Routes = append(behind.Routes, enforce.Route{To: d.To, Link: d.Index})
	}
	s.setInterfaces(behind)
	return leads
}

// reportLinkless exports how many selected pods are not the only ones behind an interface.
func (s *sources) reportLinkless(snapshot *policy.Snapshot, leads []links.Lead) {
	unknown, shared := linkless(snapshot, leads)
	s.linkless.WithLabelValues("unknown").Set(float64(unknown))
	s.linkless.WithLabelValues("shared").Set(float64(shared))
}
