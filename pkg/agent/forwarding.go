package agent

import (
	"net/netip"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer"
)

// Reasons why a pod may not forward although the annotation of its namespace allows it.
const (
	sharedLink   = "no interface of the node is known to lead to this pod alone: pods at a bridge share it"
	tooManyLists = "pods of this node forward too many different lists of sources"
)

// forwarding reports which pods of the node may forward packets for others.
type forwarding struct {
	pods    *prometheus.GaugeVec
	refused map[string]string // reason by pod
	logger  klog.Logger
}

func newForwarding(reg prometheus.Registerer, logger klog.Logger) *forwarding {
	f := &forwarding{logger: logger, pods: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "netpol_forwarding_pods",
		Help: "Pods of this node whose namespace lets them forward packets for others: allowed, or refused, because their packets cannot be distinguished from those of other pods.",
	}, []string{"state"})}
	reg.MustRegister(f.pods)
	f.report(0, nil)
	return f
}

// report exports how many pods may forward, and logs newly refused ones.
func (f *forwarding) report(allowed int, refused map[string]string) {
	for pod, why := range refused {
		if f.refused[pod] != why {
			f.logger.Error(nil, "Pod may not forward the sources that its namespace allows", "pod", pod, "reason", why)
		}
	}
	f.refused = refused
	f.pods.WithLabelValues("allowed").Set(float64(allowed))
	f.pods.WithLabelValues("refused").Set(float64(len(refused)))
}

// forwards returns the sources that pods may forward, and by pod the reasons of refusals.
// ownLink returns the interface that leads to one pod only, empty for none. Pods with the
// same list of sources share a Forward.
func forwards(all []policy.Forwarder, ownLink func(pod []netip.Addr) string) (allowed []steer.Forward, refused map[string]string) {
	refused = map[string]string{}
	for _, pod := range all {
		link := ownLink(pod.Addrs)
		i := slices.IndexFunc(allowed, func(f steer.Forward) bool { return slices.Equal(f.Sources, pod.Sources) })
		switch {
		case link == "":
			refused[pod.Pod.String()] = sharedLink
		case i >= 0:
			allowed[i].Links = append(allowed[i].Links, link)
		case len(allowed) == steer.MaxForwards:
			refused[pod.Pod.String()] = tooManyLists
		default:
			allowed = append(allowed, steer.Forward{Links: []string{link}, Sources: pod.Sources})
		}
	}
	return allowed, refused
}
