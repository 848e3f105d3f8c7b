// Package agent composes the agent: it builds the parts, publishes each snapshot in the
// right order, and runs everything until its context ends.
package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/agent/enforce"
	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
	"sigs.k8s.io/kube-network-policies/pkg/base/bootclock"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/clusterwatch"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/cniresults"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/conntrack"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/handover"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/queue"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer"
)

// agent holds the parts that stages and the HTTP endpoints talk to.
type agent struct {
	cfg     Config // without what the kernel lacks
	stages  stages
	place   *handover.Place
	metrics *metrics
	reg     *prometheus.Registry
	logger  klog.Logger

	// What reads the cluster and the node.
	cache   *clusterwatch.Cache
	cni     *cniresults.Cache // nil if addresses of pods are those of their status
	results *results

	// What decides packets.
	enforcer *enforce.Enforcer
	eval     *evaluator
	queues   []handledQueues
	ready    <-chan struct{} // closed when packets can be decided
	open     func()          // closes it

	// What the agent keeps in the kernel.
	steering *steering
	blocker  *conntrack.Blocker
	blocks   bool // the blocker has a snapshot; used by its stage only

	parts  []module.Part // of cfg.Modules
	single module.Single // of parts
}

// Run enforces policies until ctx ends and leaves the nftables rules in place. If
// another agent runs on the node, the newer one takes over from the older one. Run returns
// an error if it cannot work at all: an invalid Config, a kernel without NFQUEUE, an HTTP
// address that the machine does not have.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("agent config: %w", err)
	}
	up, err := bootclock.Now()
	if err != nil {
		return err
	}
	cfg.started = uint32(up / (100 * time.Millisecond))
	caps, err := steer.Probe(ctx)
	if err != nil {
		return err
	}
	cfg.queues = defaultQueues()
	place, err := handover.Claim(ctx, queue.Numbers{Kernel: queue.Host{}}, cfg.numbers())
	if err != nil {
		return err
	}
	defer place.Close()
	a, err := newAgent(ctx, cfg, caps, place)
	if err != nil {
		return err
	}
	a.logger.Info("Agent started", "node", cfg.NodeName, "failOpen", cfg.FailOpen)
	err = a.stages.run(ctx)
	a.logger.Info("Agent stopped, nftables rules stay in place")
	return err
}

// publishing returns the stages that follow a snapshot. docs/architecture.md numbers them.
func (a *agent) publishing() stages {
	st := a.steering
	return stages{
		{name: "preparation", follow: a.prepare,
			why: "modules keep what a pod learns before its policies need it"},
		{name: "address reuse", follow: st.followOwners, joint: true, loops: []loop{st.reuse.Run},
			ready: because("connections of stale addresses are not removed", st.reuse.Healthy),
			why:   "packets of an address wait before the policies of its new pod are evaluated"},
		{name: "evaluator", follow: a.decide, joint: true, loops: append(a.queueLoops(), a.eval.Run), ready: a.listening,
			why: "it has a policy before nftables queues the first packet of a newly selected pod"},
		{name: "nftables", follow: st.follow, joint: true, loops: []loop{st.steerer.Run}, ready: because("steering", st.steerer.Healthy),
			leave: func() { a.place.Leave(st.steerer) },
			why:   "what it queues from now on is decided by this snapshot"},
		{name: "withdrawal", follow: a.withdraw,
			why: "only this snapshot decides, so what modules take back does not come back"},
		{name: "established connections", follow: a.block, loops: []loop{a.blocker.Run},
			why: "no earlier snapshot accepts packets any more, so what is blocked does not begin again"},
		{name: "report", follow: a.metrics.published,
			why: "everything is enforced, and no packet waits for logs"},
	}
}

// services returns the stages that do not follow snapshots. They begin first.
func (a *agent) services() stages {
	sources := a.steering.sources
	return stages{
		{name: "interfaces", off: !sources.checked, begin: sources.read, loops: []loop{sources.links.Run},
			ready: because("interfaces", sources.links.Healthy)},
	}
}

// cluster returns the stages that publish snapshots. They begin last, and interfaces and sandboxes are
// read first: without interfaces the first snapshot would end the check of sources of an earlier agent,
// and it must not use addresses in a pod's status that its sandbox contradicts.
func (a *agent) cluster() stages {
	sources := a.steering.sources
	return stages{
		{name: "known interfaces", off: !sources.checked, begin: sources.links.Wait},
		{name: "addresses of new pods", off: a.cni == nil, begin: a.readResults, loops: []loop{a.cni.Run}, ready: a.sandboxesKnown},
		{name: "cluster", loops: []loop{a.cache.Run}, ready: a.clusterKnown},
	}
}

// readResults reads CNI results before the first snapshot.
func (a *agent) readResults(ctx context.Context) {
	a.cni.Read(ctx)
	a.results.wait(ctx)
}

// publish makes all stages follow a snapshot.
func (a *agent) publish(ctx context.Context, s *policy.Snapshot, since time.Time, listed bool) {
	before, _ := a.steering.latest()
	c := change{
		before: before, snapshot: s, since: since, listed: listed,
		local:    before == nil || !s.SameLocal(before),
		affected: sync.OnceValue(func() conntrack.Change { return changeSince(before, s) }),
	}
	if c.local {
		s.Prepare()
	}
	a.stages.follow(ctx, c, &a.steering.mu)
}

// decide switches the packet path to a snapshot.
func (a *agent) decide(_ context.Context, c change) {
	a.enforcer.Swap(c.snapshot)
	a.open()
}
