package agent

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/domains"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
	"sigs.k8s.io/kube-network-policies/pkg/resolvers"
)

// resolvConf is the node's, which the agent shares with it.
const resolvConf = "/etc/resolv.conf"

// learnsNames reports whether policies may name domains.
func (c Config) learnsNames() bool {
	return c.Features.DomainNames && slices.ContainsFunc(c.Kinds, func(k *compile.Kind) bool { return k.HasDomainNames })
}

// names is the observer: the names that pods have learned from the answers of resolvers.
type names struct {
	*domains.Table
	*resolvers.Finder
	found atomic.Pointer[[]netip.AddrPort]
}

// newObserver returns nil if no policy may name domains. It calls changed whenever
// Resolvers has changed.
func newObserver(cfg Config, reg prometheus.Registerer, changed func()) (observer, error) {
	if !cfg.learnsNames() {
		return nil, nil
	}
	table, err := domains.New(domains.Config{Now: time.Now, Registerer: reg})
	if err != nil {
		return nil, err
	}
	n := &names{Table: table}
	n.found.Store(&[]netip.AddrPort{})
	var client kubernetes.Interface
	if cfg.API != nil {
		client = cfg.API.Kubernetes()
	}
	n.Finder, err = resolvers.New(resolvers.Config{
		Only:       cfg.DNSResolvers,
		Client:     client,
		ResolvConf: resolvConf,
		Registerer: reg,
	}, func(found []netip.AddrPort) {
		n.found.Store(&found)
		changed()
	})
	return n, err
}

// Resolvers implements observer.
func (n *names) Resolvers() []netip.AddrPort { return *n.found.Load() }

// Follow implements observer. The addresses of one pod share what they learn.
func (n *names) Follow(s *policy.Snapshot) {
	owners := make(map[netip.Addr]string)
	for _, addr := range s.SelectedForNames() {
		owners[addr] = s.Endpoint(addr).String()
	}
	n.Keep(owners)
}
