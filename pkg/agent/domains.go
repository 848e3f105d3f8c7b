package agent

import (
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/agent/domains"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/resolvers"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/statefile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer"
)

// resolvConf is the node's resolv.conf, which the agent shares.
const resolvConf = "/etc/resolv.conf"

// learnsNames reports whether policies may name domains.
func (c Config) learnsNames() bool {
	return c.Features.DomainNames && slices.ContainsFunc(c.Kinds, func(k *compile.Kind) bool { return k.HasDomainNames })
}

// names is the observer of names that pods learn from the answers of resolvers.
type names struct {
	*domains.Table
	*resolvers.Finder
	found atomic.Pointer[[]netip.AddrPort]
}

// noNames is the observer when no policy may name domains. It never runs and receives no
// packets.
type noNames struct{ observer }

func (noNames) learned() policy.Learned { return nil }

func (noNames) why() explainer { return nil }

func (noNames) Follow(*policy.Snapshot) {}

func (noNames) addSets(*steer.Sets, *policy.Snapshot) {}

// newObserver returns the observer, which calls changed whenever the resolvers change.
func newObserver(cfg Config, reg prometheus.Registerer, changed func()) (observer, error) {
	if !cfg.learnsNames() {
		return noNames{}, nil
	}
	table, err := domains.New(domains.Config{Now: time.Now, Registerer: reg})
	if err != nil {
		return nil, err
	}
	n := &names{Table: table}
	n.found.Store(&[]netip.AddrPort{})
	find := resolvers.Config{Only: cfg.DNSResolvers, ResolvConf: resolvConf, Registerer: reg}
	if cfg.API != nil {
		find.Cluster = cfg.API
	}
	n.Finder, err = resolvers.New(find, func(found []netip.AddrPort) {
		n.found.Store(&found)
		changed()
	})
	return n, err
}

func (n *names) learned() policy.Learned { return n }

func (n *names) why() explainer { return n.Why }

// addSets implements observer.
func (n *names) addSets(sets *steer.Sets, s *policy.Snapshot) {
	sets.Names, sets.Resolvers = s.SelectedForNames(), *n.found.Load()
}

// Follow implements observer. The addresses of one pod share what they learn, and a later pod
// with its name has another ID.
func (n *names) Follow(s *policy.Snapshot) {
	owners := make(map[netip.Addr]string)
	for _, addr := range s.SelectedForNames() {
		e := s.Endpoint(addr)
		owners[addr] = fmt.Sprintf("%v %08x", e, e.ID)
	}
	n.Keep(owners)
}

// savedNames returns the file that keeps what pods have learned across restarts, beside that of
// the state of the cluster. It is nil without that, or if policies may name no domains.
func (a *agent) savedNames() (*domains.File, error) {
	n, ok := a.names.(*names)
	if !ok || a.cfg.SnapshotCache == "" {
		return nil, nil
	}
	boot, err := statefile.BootID()
	if err != nil {
		return nil, fmt.Errorf("saved names: %w", err)
	}
	if _, err := uptime(); err != nil {
		return nil, err
	}
	return domains.NewFile(domains.FileConfig{
		Path:      NamesFile(a.cfg.SnapshotCache),
		Node:      a.cfg.NodeName,
		Boot:      boot,
		Resolvers: a.cfg.DNSResolvers,
		Uptime: func() time.Duration {
			up, _ := uptime() // it does not fail later
			return up
		},
		Alone:      a.place.Alone,
		Registerer: a.reg,
	}, n.Table), nil
}

// NamesFile returns the file with the names that pods have learned, for Config.SnapshotCache.
func NamesFile(snapshotCache string) string { return snapshotCache + ".names" }
