package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/agent/enforce"
	"sigs.k8s.io/kube-network-policies/pkg/agent/event"
	"sigs.k8s.io/kube-network-policies/pkg/base/bootclock"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/clusterwatch"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/cniresults"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/statefile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/addressreuse"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/conntrack"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/handover"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer"
)

// compileInterval is the least time between two compiles for kinds whose objects change
// often. compileDelay is how long such a compile waits for changes that were read together
// with the first. The read pace of clusterwatch/apiconn adds to both.
const (
	compileInterval = 10 * time.Millisecond
	compileDelay    = 2 * time.Millisecond
)

// savedPatience is how long an agent that takes over from another one waits for the API
// server before it uses the saved state of the cluster.
const savedPatience = 5 * time.Second

// newAgent builds all parts. It starts nothing.
func newAgent(ctx context.Context, cfg Config, caps steer.Capabilities, place *handover.Place) (*agent, error) {
	reg, logger := cfg.Registry, klog.FromContext(ctx)
	ready := make(chan struct{})
	a := &agent{
		cfg:      cfg.supported(caps, place, logger),
		place:    place,
		metrics:  newMetrics(reg),
		reg:      reg,
		logger:   logger,
		ready:    ready,
		open:     sync.OnceFunc(func() { close(ready) }),
		eval:     newEvaluator(reg),
		steering: &steering{},
	}
	if cfg.FailOpen.NoAgent {
		a.open() // packets need not wait for a snapshot
	}
	if err := a.newDecisions(); err != nil {
		return nil, err
	}
	if err := a.newSteering(ctx, caps); err != nil {
		return nil, err
	}
	if err := a.newCluster(); err != nil {
		return nil, err
	}
	a.stages = slices.Concat(a.services(), a.modules(), a.publishing(), a.cluster())
	exportReadiness(reg, a.readiness)
	return a, nil
}

// supported returns c with the queue numbers of place, and without features that the kernel
// lacks.
func (c Config) supported(caps steer.Capabilities, place *handover.Place, logger klog.Logger) Config {
	c.Queue = place.Numbers.First
	c.share = steer.DefaultShare
	if caps.Share != nil {
		logger.Error(caps.Share, "Pods have no shares: a pod that floods delays first packets of other pods")
		c.share = 0
	}
	if caps.Answers() {
		c.rejectMark = c.Marks.Lower
	} else if c.Denial == compile.Reject {
		logger.Error(errors.Join(caps.Reject, caps.SourceCheck), "Denied packets are dropped without an answer")
	}
	return c
}

// newDecisions builds the parts that decide packets.
func (a *agent) newDecisions() (err error) {
	enforcing := enforce.Config{
		FailOpen:              a.cfg.FailOpen.NoAgent,
		FailOpenUnknownPacket: a.cfg.FailOpen.UnknownPacket,
		Learned:               learnedNames{a},
		Routes:                a.steering,
		Taps:                  []event.Tap{a.accepted},
	}
	blocking := conntrack.Config{
		Mark:       a.cfg.Marks.Lower,
		Override:   a.override,
		Alone:      a.place.Alone,
		Registerer: a.reg,
	}
	if err := a.newParts(); err != nil {
		return err
	}
	if classes := a.single.Classes; classes != nil {
		enforcing.AcceptClass, blocking.AcceptedFor = classes.Accept, classes.For
	}
	a.blocker, err = conntrack.New(blocking)
	if err != nil {
		return err
	}
	for _, p := range a.parts {
		if p.Tap != nil {
			enforcing.Taps = append(enforcing.Taps, p.Tap)
		}
	}
	a.enforcer = enforce.New(enforcing)
	a.queues, err = newQueues(a.cfg, a.enforcer, a.steering.observe, a.ready, a.reg)
	return err
}

// newSteering builds the parts that write the node's pods to nftables and conntrack. It reads
// the owners that an earlier agent recorded: the kernel may still track their connections.
func (a *agent) newSteering(ctx context.Context, caps steer.Capabilities) (err error) {
	s := a.steering
	a.results = newResults(a.reg, klog.LoggerWithName(a.logger, "cniresults"))
	relinked := func() {
		s.resteer()
		a.results.relinked()
		a.cache.Rerouted()
	}
	if s.sources, err = newSources(a.cfg, caps, relinked, a.setInterfaces, a.reg, a.logger); err != nil {
		return err
	}
	s.sources.filterBridges = a.filterBridges
	if s.sources.checked {
		a.results.links = s.sources.links
	}
	if s.steerer, err = steer.New(a.steererConfig(caps), caps); err != nil {
		return err
	}
	recorded, err := s.steerer.Owners(ctx)
	if err != nil {
		return err
	}
	remover, err := conntrack.NewRemover(s.steerer.Renewed, a.reg)
	if err != nil {
		return err
	}
	s.reuse = addressreuse.New(addressreuse.Config{
		Recorded: recorded,
		Hold:     a.enforcer.SetUnknown,
		Forget:   s.steerer.ForgetRenewed,
		Remove:   remover.Remove,
		Changed:  s.resteer,
	})
	s.exportClosed(a.reg)
	s.closable = !a.place.Beside && !a.cfg.FailOpen.NoAgent && !a.cfg.Audit
	for _, owner := range recorded {
		s.recorded = append(s.recorded, owner.Addr)
	}
	s.closed = s.closable && !s.reuse.Any()
	if s.closed {
		a.logger.Info("The node has no rules of an earlier agent: new connections of its pods wait for the first snapshot")
	}
	return nil
}

func (a *agent) steererConfig(caps steer.Capabilities) steer.Config {
	return steer.Config{
		Queue:         a.cfg.Queue,
		Queues:        a.cfg.queues,
		ObserveQueue:  a.cfg.observeQueue(a.steering.observe),
		Share:         a.cfg.share,
		OverflowQueue: a.cfg.overflowQueue(),
		AuditQueue:    a.cfg.auditQueue(),
		Bypass:        a.cfg.FailOpen.NoAgent,
		Mark:          a.cfg.Marks.Decided,
		BlockMark:     a.cfg.Marks.Lower,
		Parts:         a.cfg.Table,
		SourceCheck:   a.steering.sources.checked,
		SCTPPerPacket: errors.Is(caps.SCTPConntrack, errors.ErrUnsupported),
		Holder:        a.cfg.holder(),
		Agents:        agents{a},
		Applied:       func(serial uint64) { a.steering.reuse.Applied(serial) },
		Repaired:      a.recheck,
		Registerer:    a.reg,
	}
}

// newCluster builds the parts that read the cluster.
func (a *agent) newCluster() error {
	cfg := clusterwatch.Config{
		NodeName:    a.cfg.NodeName,
		Kinds:       a.cfg.Kinds,
		Features:    a.cfg.Features,
		Audit:       a.cfg.Audit,
		Denial:      a.cfg.Denial,
		Deferred:    a.eval.deferred,
		MinInterval: compileInterval,
		Delay:       compileDelay,
		PodRanges:   a.steering.closeRanges,
		Contains:    a.contains,
		NodeChanged: a.nodeChanged,
		Misordered:  a.results.misordered,
		Registerer:  a.reg,

		AwaitNamespaces: !a.cfg.Partial && len(a.cfg.Kinds) > 0,
		OwnNode:         clusterwatch.Required,
		LeadsElsewhere:  a.steering.sources.links.LeadsElsewhere,
	}
	if a.cfg.Partial {
		cfg.OwnNode = clusterwatch.IfAnyNode
	}
	if a.place.Beside {
		cfg.SavedAfter = savedPatience // meanwhile the other agent enforces the current state
	}
	var err error
	if cfg.Saved, err = newSnapshotCache(a.cfg, a.reg); err != nil {
		return err
	}
	if a.cache, err = clusterwatch.New(a.cfg.Source(), cfg, a.publish); err != nil {
		return err
	}
	a.results.set = a.setSandboxes
	a.cni, err = newCNICache(a.cfg, func(found []cniresults.Sandbox) {
		a.steering.closeSandboxes(addressesOf(found))
		a.results.follow(found)
	}, a.reg)
	return err
}

// savedFor is the greatest age of a saved state: longer than people take to repair an API
// server. An older state is more likely wrong than useful.
const savedFor = 24 * time.Hour

// newSnapshotCache returns the cache of the cluster's state, nil if it is switched off.
func newSnapshotCache(cfg Config, reg prometheus.Registerer) (*statefile.Cache, error) {
	if cfg.SnapshotCache == "" {
		return nil, nil
	}
	boot, err := bootclock.Boot()
	if err != nil {
		return nil, fmt.Errorf("snapshot cache: %w", err)
	}
	return statefile.New(statefile.Config{
		Path:       cfg.SnapshotCache,
		MaxAge:     savedFor,
		Node:       cfg.NodeName,
		Kinds:      cfg.Kinds,
		Boot:       boot,
		Registerer: reg,
	}), nil
}
