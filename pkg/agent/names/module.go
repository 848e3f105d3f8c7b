// Package names is the module that lets policies name domains: a pod learns addresses of names from the
// answers of resolvers.
package names

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"

	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
	"sigs.k8s.io/kube-network-policies/pkg/agent/names/domains"
	"sigs.k8s.io/kube-network-policies/pkg/agent/names/resolvers"
	"sigs.k8s.io/kube-network-policies/pkg/base/bootclock"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// resolvConf is the node's resolv.conf, which the agent shares.
const resolvConf = "/etc/resolv.conf"

// Config is what the module needs to know of other flags.
type Config struct {
	// Kinds and Features are those of the agent: without any that name domains, nothing is learned.
	Kinds    []*compile.Kind
	Features compile.Features
	// Cluster reads the cluster's DNS Service, nil if there is no API server.
	Cluster resolvers.Cluster
	// SnapshotCache is the file beside which File is. Empty saves no names.
	SnapshotCache string
}

// File returns the file with the names that pods have learned, beside that of the state of the cluster.
func File(snapshotCache string) string { return snapshotCache + ".names" }

// Module returns the module, which reads its configuration once flags are parsed.
func Module(config func() Config) module.Module {
	var only []netip.AddrPort
	return module.Module{
		Name: "domain names",
		Flags: func(fs *pflag.FlagSet) {
			fs.Func("dns-resolvers", "the only DNS resolvers, as `IP[:PORT],...`, whose answers count for domain names in policies; empty uses the cluster's DNS Service, the pods behind it and the nameservers of this machine", func(s string) (err error) {
				only, err = addResolvers(only, s)
				return err
			})
		},
		New: func(core *module.Core) (module.Part, error) { return newPart(config(), only, core) },
	}
}

// addResolvers adds resolvers, with commas in between.
func addResolvers(to []netip.AddrPort, list string) ([]netip.AddrPort, error) {
	if list == "" {
		return to, nil
	}
	for item := range strings.SplitSeq(list, ",") {
		resolver, err := resolvers.Parse(item)
		if err != nil {
			return to, err
		}
		to = append(to, resolver)
	}
	return to, nil
}

// learns reports whether policies may name domains.
func (c Config) learns() bool {
	return c.Features.DomainNames && slices.ContainsFunc(c.Kinds, func(k *compile.Kind) bool { return k.HasDomainNames })
}

func newPart(cfg Config, only []netip.AddrPort, core *module.Core) (part module.Part, err error) {
	if !cfg.learns() {
		return part, nil
	}
	table, err := domains.New(domains.Config{Now: time.Now, Registerer: core.Registry})
	if err != nil {
		return part, err
	}
	var found atomic.Pointer[[]netip.AddrPort]
	found.Store(&[]netip.AddrPort{})
	finder, err := resolvers.New(resolvers.Config{Only: only, Cluster: cfg.Cluster, ResolvConf: resolvConf, Registerer: core.Registry}, func(now []netip.AddrPort) {
		found.Store(&now)
		core.Resteer()
	})
	if err != nil {
		return part, err
	}
	part = module.Part{
		Prepare: func(s *policy.Snapshot) { table.Keep(owners(s)) },
		Explain: table.Why,
		Single: module.Single{Learned: table, Observe: &module.Observe{
			Between: func(s *policy.Snapshot) ([]netip.Addr, []netip.AddrPort) { return s.SelectedForNames(), *found.Load() },
			Packet:  table.Observe,
		}},
		Loops: []func(context.Context) error{finder.Run},
	}
	if cfg.SnapshotCache == "" {
		return part, nil
	}
	file, err := newFile(File(cfg.SnapshotCache), only, table, core)
	if err != nil {
		return part, err
	}
	part.Begin, part.Loops = file.Load, append(part.Loops, file.Run)
	return part, nil
}

// owners returns the pods whose policies name domains, by their addresses. The addresses of one pod share
// what they learn, and a later pod with its name has another ID.
func owners(s *policy.Snapshot) map[netip.Addr]string {
	owners := make(map[netip.Addr]string)
	for _, addr := range s.SelectedForNames() {
		e := s.Endpoint(addr)
		owners[addr] = fmt.Sprintf("%v %08x", e, e.ID)
	}
	return owners
}

// newFile returns the file that keeps what pods have learned across restarts.
func newFile(path string, only []netip.AddrPort, table *domains.Table, core *module.Core) (*domains.File, error) {
	boot, err := bootclock.Boot()
	if err != nil {
		return nil, fmt.Errorf("saved names: %w", err)
	}
	if _, err := bootclock.Now(); err != nil {
		return nil, err
	}
	return domains.NewFile(domains.FileConfig{
		Path: path, Node: core.Node, Boot: boot, Resolvers: only,
		Uptime: func() time.Duration {
			up, _ := bootclock.Now() // it does not fail later
			return up
		},
		Alone: core.Alone, Registerer: core.Registry,
	}, table), nil
}
