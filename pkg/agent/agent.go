// Package agent composes the agent: it builds the parts, publishes each snapshot in the
// right order, runs everything until its context ends, and serves /metrics, /livez and
// /readyz.
package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/bridgefilter"
	"sigs.k8s.io/kube-network-policies/pkg/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/cnicache"
	"sigs.k8s.io/kube-network-policies/pkg/conntrack"
	"sigs.k8s.io/kube-network-policies/pkg/enforce"
	"sigs.k8s.io/kube-network-policies/pkg/flows"
	"sigs.k8s.io/kube-network-policies/pkg/httpserver"
	"sigs.k8s.io/kube-network-policies/pkg/links"
	"sigs.k8s.io/kube-network-policies/pkg/nodecheck"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
	"sigs.k8s.io/kube-network-policies/pkg/policycache"
	"sigs.k8s.io/kube-network-policies/pkg/policycache/manifests"
	"sigs.k8s.io/kube-network-policies/pkg/queue"
	"sigs.k8s.io/kube-network-policies/pkg/snapshotcache"
	"sigs.k8s.io/kube-network-policies/pkg/steer"
	"sigs.k8s.io/kube-network-policies/pkg/verdictcache"
)

// compileInterval is the least time between two compiles for changes of a kind of which many
// objects change, and compileSettle how long such a compile waits for further changes that
// were read together with the first. Pods then wait for the pace at which
// policycache/apiconn reads, too.
const (
	compileInterval = 10 * time.Millisecond
	compileSettle   = 2 * time.Millisecond
)

// savedPatience is how long an agent that is to take over from another one waits for the
// API server before it uses the saved state of the cluster.
const savedPatience = 5 * time.Second

// agent holds the parts that publish and the HTTP endpoints talk to.
type agent struct {
	enforcer *enforce.Enforcer
	flows    *flows.Recorder
	observer observer // nil if no policy may name domains
	queues   []served
	peers    *peers
	numbers  numbers
	steerer  *steer.Steerer
	owners   *owners
	reuse    *reuse
	eval     *evaluator
	verdicts *verdictcache.Cache // nil remembers none
	blocker  *conntrack.Blocker
	links    *links.Watcher       // nil if sources are not checked
	bridges  *bridgefilter.Filter // the same
	cni      *cnicache.Cache      // nil if addresses of pods are those of their status
	node     *nodecheck.Checker
	decides  func(number uint16) bool // whether that queue decides

	forwarding  *forwarding
	otherPorts  []string // of bridges without pods
	tunnelPorts []uint16
	podTunnels  PodTunnels
	needsCNI    bool // the agent is not ready while cni cannot be read

	cache   *policycache.Cache
	metrics *metrics
	logger  klog.Logger

	ready     chan struct{} // closed when packets can be decided
	published sync.Once     // closes ready

	blocks bool // the blocker has a snapshot; publish alone uses it

	booted bool // the node has no rules of an earlier agent that knew a pod

	mu      sync.Mutex
	steered *policy.Snapshot // whose packets are steered, nil before the first; publish alone sets it
	desired steer.Sets       // of steered
	closed  closed           // what is steered before that, if booted

	sandboxed []netip.Addr // the addresses of sandboxes
}

// Run enforces policies until ctx ends and leaves the nftables rules in place. If
// another agent runs on the node, the newer one takes over from the older one. Run returns
// an error if it cannot work at all: an invalid Config, a kernel without NFQUEUE, an HTTP
// address that the machine does not have.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("agent config: %w", err)
	}
	logger := klog.FromContext(ctx)
	if cfg.Started == 0 {
		var err error
		if cfg.Started, err = StartTime(); err != nil {
			return err
		}
	}
	caps, err := steer.Probe(ctx)
	if err != nil {
		return err
	}
	cfg, claimed, err := claim(ctx, cfg, queue.Host{})
	if err != nil {
		return err
	}
	defer claimed.Close()
	reg := httpserver.NewRegistry()
	countRestarts(reg, cfg.Restarts)
	// Readiness does not depend on the names that are found on the node: they do not prove
	// that packets pass by.
	node := nodecheck.New(ctx, nodecheck.Host{Table: steer.TableName, UntrackedCounter: steer.UntrackedCounter}, reg)
	a, err := newAgent(cfg, caps, node, reg, logger)
	if err != nil {
		return err
	}
	if err := a.recall(ctx, reg); err != nil {
		return err
	}
	exportReadiness(reg, a.readiness)
	a.booted = !a.owners.any() && !cfg.beside && !cfg.FailOpen.NoAgent && !cfg.Audit
	if a.booted {
		logger.Info("The node has no rules of an earlier agent: new connections of its pods wait for the first snapshot")
	}
	// Whatever must work until another agent has taken over outlives ctx.
	work, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	stop := context.AfterFunc(ctx, func() {
		defer end()
		a.peers.leave(a.steerer, a.numbers)
	})
	defer stop()
	group, ctx := errgroup.WithContext(work)
	server := httpserver.New(httpserver.Handler(reg, a.live, a.readiness), a.client, reg)
	group.Go(func() error {
		return serve(ctx, withDenied(server, a.flows, cfg.MetricsAccess), cfg.MetricsBindAddress, cfg.MetricsAccess)
	})
	if cfg.ProbeSocket != "" {
		group.Go(func() error { return serveSocket(ctx, server, a.flows, cfg.ProbeSocket) })
	}
	group.Go(func() error { return node.Run(ctx, a.facts) })
	group.Go(func() error { return a.flows.Run(ctx) })
	if cfg.FlowLog != nil {
		group.Go(func() error { return a.flows.Log(ctx, cfg.FlowLog) })
	}
	group.Go(func() error { return a.steerer.Run(ctx) })
	if a.links != nil {
		if err := a.links.Read(); err != nil {
			logger.Error(err, "Sources of packets are not checked until interfaces and routes can be read")
		}
		group.Go(func() error { return a.links.Run(ctx) })
		group.Go(func() error { return a.bridges.Run(ctx) })
	}
	group.Go(func() error { return a.reuse.Run(ctx) })
	group.Go(func() error { return a.blocker.Run(ctx) })
	group.Go(func() error { return a.eval.Run(ctx) })
	if a.verdicts != nil {
		group.Go(func() error { return a.verdicts.Run(ctx) })
	}
	for _, q := range a.queues {
		group.Go(func() error { return q.Run(ctx, q.handler, q.ready) })
	}
	if a.observer != nil {
		group.Go(func() error { return a.observer.Run(ctx) })
	}
	if a.cni != nil {
		a.cni.Read(ctx) // the first snapshot must not follow statuses that sandboxes contradict
		group.Go(func() error { return a.cni.Run(ctx) })
	}
	group.Go(func() error { return a.cache.Run(ctx) })
	logger.Info("Agent started", "node", cfg.NodeName, "manifests", cfg.Manifests, "failOpen", cfg.FailOpen)
	err = group.Wait()
	logger.Info("Agent stopped, nftables rules stay in place")
	return err
}

func newAgent(cfg Config, caps steer.Capabilities, node *nodecheck.Checker, reg prometheus.Registerer, logger klog.Logger) (*agent, error) {
	a := &agent{ready: make(chan struct{}), metrics: newMetrics(reg), logger: logger, eval: newEvaluator(cfg.EvaluationMemory, reg)}
	a.node, a.decides = node, cfg.decides
	a.exportClosed(reg)
	a.forwarding = newForwarding(reg, logger)
	a.peers, a.numbers = &peers{kernel: queue.Host{}}, cfg.numbers()
	a.tunnelPorts, a.podTunnels = cfg.TunnelPorts, cfg.PodTunnels
	if cfg.Share > 0 && caps.Share != nil {
		logger.Error(caps.Share, "Pods have no shares: a pod that floods delays first packets of other pods")
		cfg.Share = 0
	}
	if cfg.RememberMark != 0 && caps.Remember != nil {
		logger.Error(caps.Remember, "Verdicts are not remembered: the agent decides every connection")
		cfg.RememberMark, cfg.RememberVerdicts = 0, 0
	}
	if cfg.FailOpen.NoAgent {
		a.open() // packets need not wait for a snapshot
	}
	var err error
	if a.observer, err = newObserver(cfg, reg, a.resteer); err != nil {
		return nil, err
	}
	a.verdicts = a.newVerdictCache(cfg, reg)
	a.flows = flows.New(flows.Config{
		Node: cfg.NodeName, Learned: a.observer, Connections: a.connections, Remembers: a.remembers, AuditOnly: cfg.Audit, Registerer: reg,
	})
	if a.blocker, err = a.newBlocker(cfg, reg); err != nil {
		return nil, err
	}
	a.enforcer = enforce.New(enforce.Config{
		FailOpen:              cfg.FailOpen.NoAgent,
		FailOpenUnknownPacket: cfg.FailOpen.UnknownPacket,
		Learned:               a.observer,
		Verdicts:              a.remembering(),
		Flows:                 a.flows,
		Accepted:              a.blocker.Accepted,
		LogDenied:             cfg.LogDenied,
		Logger:                klog.LoggerWithName(logger, "enforce"),
		Registerer:            reg,
	})
	if a.links, err = newLinks(cfg, caps, a.resteer, logger); err != nil {
		return nil, err
	}
	if a.links != nil {
		if a.bridges, err = bridgefilter.New(reg); err != nil {
			return nil, err
		}
	}
	if a.steerer, err = steer.New(steer.Config{
		Queue:         cfg.Queue,
		Queues:        cfg.Queues,
		ObserveQueue:  cfg.observeQueue(),
		Share:         cfg.Share,
		OverflowQueue: cfg.overflowQueue(),
		AuditQueue:    cfg.auditQueue(),
		Bypass:        cfg.FailOpen.NoAgent,
		Mark:          cfg.Mark,
		BlockMark:     cfg.BlockMark,
		RememberMark:  cfg.RememberMark,
		RememberFor:   cfg.RememberVerdicts,
		Divert:        cfg.Divert,
		EarlyUDP:      cfg.EarlyUDP,
		SourceCheck:   a.links != nil,
		SCTPPerPacket: errors.Is(caps.SCTPConntrack, errors.ErrUnsupported),
		Holder:        cfg.holder(),
		Agents:        a.peers,
		Applied:       func(serial uint64) { a.reuse.applied(serial) },
		Repaired:      a.recheck,
		Registerer:    reg,
	}, caps); err != nil {
		return nil, err
	}
	if a.queues, err = newQueues(cfg, a.enforcer, a.observer, a.ready, reg); err != nil {
		return nil, err
	}
	a.peers.queues = a.queues
	source, err := newSource(cfg, reg)
	if err != nil {
		return nil, err
	}
	saved, err := newSnapshotCache(cfg, reg)
	if err != nil {
		return nil, err
	}
	var needed func(policycache.PodQuery) cache.ListerWatcher
	if cfg.PodWatches == NeededPods {
		needed = cfg.API.Pods
	}
	savedAfter := time.Duration(0)
	if cfg.beside {
		savedAfter = savedPatience // the other agent goes on meanwhile, by what is current
	}
	a.cache, err = policycache.New(source, policycache.Config{
		NodeName:    cfg.NodeName,
		Kinds:       cfg.Kinds,
		Features:    cfg.Features,
		Audit:       cfg.Audit,
		Memory:      a.eval.memory,
		MinInterval: compileInterval,
		Settle:      compileSettle,
		Saved:       saved,
		SavedAfter:  savedAfter,
		PodRanges:   a.closeRanges,
		NodeChanged: node.Poke,
		NeededPods:  needed,
		Registerer:  reg,

		MaxNeededWatches: cfg.MaxPodWatches,
		// The objects of a folder need not have their namespaces and nodes among them.
		AwaitNamespaces: cfg.API != nil && len(cfg.Kinds) > 0,
		OwnNode:         cfg.ownNode(),
	}, a.publish)
	if err != nil {
		return nil, err
	}
	a.needsCNI = cfg.PodAddressSource == PodAddressCNICache
	a.cni, err = newCNICache(cfg, func(found []clusterstate.Sandbox) {
		a.closeSandboxes(found)
		a.cache.SetSandboxes(found)
	}, reg)
	return a, err
}

// recall reads which pods' connections the kernel may track. It must be called before
// anything runs.
func (a *agent) recall(ctx context.Context, reg prometheus.Registerer) error {
	recorded, err := a.steerer.Owners(ctx)
	if err != nil {
		return err
	}
	a.follow(recorded, conntrack.NewRemover(reg), reg)
	return nil
}

// follow starts to track the owners of addresses.
func (a *agent) follow(recorded []steer.Owner, r remover, reg prometheus.Registerer) {
	a.owners = newOwners(recorded, a.enforcer.SetPending)
	a.reuse = newReuse(a.owners, r, a.resteer, reg)
}

// newSource returns where the cluster is read from.
func newSource(cfg Config, reg prometheus.Registerer) (policycache.Source, error) {
	if cfg.API != nil {
		return cfg.API, nil
	}
	return manifests.New(cfg.Manifests, reg)
}

// newSnapshotCache returns the file that keeps the state of the cluster, nil for none.
func newSnapshotCache(cfg Config, reg prometheus.Registerer) (*snapshotcache.Cache, error) {
	if cfg.SnapshotCache == "" {
		return nil, nil
	}
	boot, err := snapshotcache.BootID()
	if err != nil {
		return nil, fmt.Errorf("snapshot cache: %w", err)
	}
	return snapshotcache.New(snapshotcache.Config{
		Path:       cfg.SnapshotCache,
		MaxAge:     cfg.SnapshotCacheMaxAge,
		Node:       cfg.NodeName,
		Kinds:      cfg.Kinds,
		Boot:       boot,
		Registerer: reg,
	}), nil
}

// publish activates a snapshot. The order matters: the observer and the enforcer know a
// policy before nftables queues the first packet of a newly selected pod, and packets of
// an address are pending before the policies of its new pod are evaluated.
func (a *agent) publish(ctx context.Context, s *policy.Snapshot, since time.Time, listed bool) {
	before := a.steered
	sameLocal := before != nil && s.SameLocal(before)
	if !sameLocal {
		s.Prepare()
	}
	if a.observer != nil {
		a.observer.Follow(s)
	}
	a.enforce(s, sameLocal, since)
	change := changeSince(before, s)
	a.forget(ctx, before, change)
	a.metrics.enforced(since)
	if listed {
		a.block(s, change)
	}
	a.metrics.published(ctx, s)
}

// enforce decides packets by s and steers the packets that s is about. The owners and the
// steered addresses in the desired state are always of the same snapshot, unless nothing
// has changed of the node's own pods.
func (a *agent) enforce(s *policy.Snapshot, sameLocal bool, since time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.owners.follow(s)
	a.enforcer.Swap(s)
	a.steered = s
	if !sameLocal {
		a.desired = a.sets(s)
	}
	a.open()
	a.desired.Since = since
	a.steer()
}

// steer has the desired state written.
func (a *agent) steer() {
	a.steerer.Set(a.desired)
	if a.bridges != nil {
		a.bridges.Set(len(a.desired.Bridges) > 0, a.otherPorts)
	}
}

// recheck evaluates the connections that were accepted while another process had changed
// the rules. That process may have changed those of bridges, too.
func (a *agent) recheck() {
	if a.bridges != nil {
		a.bridges.Verify()
	}
	a.blocker.Recheck()
}

// resteer applies a change of resolvers, interfaces or owners. Before the first snapshot
// the rules of an earlier run stay.
func (a *agent) resteer() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.steered != nil {
		a.desired = a.sets(a.steered)
		a.steer()
	}
}

func (a *agent) sets(s *policy.Snapshot) steer.Sets {
	sets := steer.Sets{
		Ingress:       s.Selected(policy.Ingress),
		Egress:        s.Selected(policy.Egress),
		ToHost:        s.SelectedToHost(),
		Pods:          s.Local(),
		IngressRanges: s.Ranges(policy.Ingress),
		EgressRanges:  s.Ranges(policy.Egress),
		ToHostRanges:  s.RangesToHost(),
		AuditIngress:  s.AuditedIn(policy.Ingress),
		AuditEgress:   s.AuditedIn(policy.Egress),
		AuditToHost:   s.AuditedToHost(),
	}
	if a.observer != nil {
		sets.Names, sets.Resolvers = s.SelectedForNames(), a.observer.Resolvers()
	}
	var leads []links.Lead
	if a.links != nil {
		leads = a.checkSources(&sets, s)
	}
	a.metrics.linkless.Set(float64(linkless(s, leads)))
	a.owners.addSets(&sets)
	return sets
}

// open starts deciding packets.
func (a *agent) open() {
	a.published.Do(func() { close(a.ready) })
}
