package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"sigs.k8s.io/kube-network-policies/pkg/agent"
	"sigs.k8s.io/kube-network-policies/pkg/cnicache"
	"sigs.k8s.io/kube-network-policies/pkg/conntrack"
	"sigs.k8s.io/kube-network-policies/pkg/links"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
	"sigs.k8s.io/kube-network-policies/pkg/policycache"
	"sigs.k8s.io/kube-network-policies/pkg/resolvers"
	"sigs.k8s.io/kube-network-policies/pkg/steer"
	"sigs.k8s.io/kube-network-policies/pkg/verdictcache"
)

const (
	// maxQueues is the maximum of --nfqueue-count: one for each core of a large
	// machine.
	maxQueues = 64
	// defaultMaxQueues leaves the cores of a large node to its pods.
	defaultMaxQueues = 4
	// defaultQueue is the default of --nfqueue-id. Numbers around 0 and 100 are used by
	// other software, kindnetd among it.
	defaultQueue = 7100
	// minEvaluationMemory is enough for the peers of a few pods.
	minEvaluationMemory = 1 << 20
	// maxRememberVerdicts bounds how long a node without an agent accepts connections.
	maxRememberVerdicts = time.Hour
	// minSnapshotMaxAge leaves time to save a state that does not change.
	minSnapshotMaxAge = time.Minute
)

// options are the flags of the agent.
type options struct {
	sharedOptions
	nodeName          string
	podWatches        agent.PodWatches
	maxPodWatches     int
	manifests         string
	queue             int
	queues            int
	share             int
	divert            steer.Divert
	mark              string
	blockMark         string
	rememberVerdicts  time.Duration
	rememberMark      string
	earlyUDP          steer.EarlyUDP
	failOpen          agent.FailOpen
	sourceCheckExempt []string
	tunnelPorts       []string
	podTunnels        []string
	dnsResolvers      []string
	logDenied         bool
	flowLog           bool
	evaluationMemory  int64
	probeSocket       string
	podAddressSource  agent.PodAddressSource
	cniCacheDir       string
	maxCrashes        int
	snapshotCache     string
	snapshotMaxAge    time.Duration
	cleanup           bool
	cleanupWait       bool
}

func newOptions() *options {
	return &options{
		sharedOptions:    newSharedOptions(),
		maxPodWatches:    policycache.MaxNeededWatches,
		queue:            defaultQueue,
		queues:           min(runtime.NumCPU(), defaultMaxQueues),
		share:            int(steer.DefaultShare),
		mark:             fmt.Sprintf("%#x", steer.DefaultMark),
		blockMark:        fmt.Sprintf("%#x", conntrack.DefaultMark),
		rememberVerdicts: verdictcache.DefaultAllowedFor,
		rememberMark:     fmt.Sprintf("%#x", steer.DefaultRememberMark),
		evaluationMemory: policy.DefaultMemory,
		cniCacheDir:      cnicache.DefaultDir,
		snapshotMaxAge:   24 * time.Hour,
	}
}

func (o *options) addFlags(fs *pflag.FlagSet) {
	o.sharedOptions.addFlags(fs)
	fs.StringVar(&o.nodeName, "hostname-override", o.nodeName, "name of this machine's Node object; empty uses the host name. With the name of no Node the agent is not ready and decides nothing")
	fs.StringVar(&o.manifests, "manifests", o.manifests, "directory of Kubernetes manifests (pods, namespaces, nodes, network policies) to enforce instead of those of an API server; changed files are read again")
	fs.TextVar(&o.podWatches, "pod-watches", o.podWatches, "`PODS` of other nodes to watch: all, or needed, those that policies of this node's pods name, which asks less of the API server where policies name few")
	fs.IntVar(&o.maxPodWatches, "max-pod-watches", o.maxPodWatches, "with --pod-watches=needed, how many watches of pods of other nodes are needed at a time, 1-62; where policies need more, wider ones take their place, in the end one of all pods. With few, the agent receives pods that it does not need")
	fs.IntVar(&o.queue, "nfqueue-id", o.queue, "the number, 0-65535, from which on the agent takes NFQUEUE numbers: two for each queue and three more. If another process uses one of them, it takes the next free range, and says so in the log")
	fs.IntVar(&o.queues, "nfqueue-count", o.queues, "number of queues, 1-64; the kernel distributes connections over them by CPU. Too many take CPU time from pods, too few delay new connections. The default is the number of CPUs, at most 4")
	fs.IntVar(&o.share, "pod-share", o.share, "packets per second of each pod of this node that are decided before the packets of pods beyond their share; those are decided with the remaining capacity. 0 disables shares: a pod that floods then delays the first packets of all other pods")
	fs.TextVar(&o.divert, "divert", o.divert, "how packets are queued, `MODE`: queue (nftables statement), xtables (NFQUEUE target through nft_compat), or auto, which uses what the kernel supports. Start fails with a way that the kernel lacks")
	fs.StringVar(&o.mark, "mark", o.mark, "the one `BIT` of packet marks and conntrack marks that the agent uses. Other software that uses the same bit breaks enforcement")
	fs.StringVar(&o.blockMark, "block-mark", o.blockMark, "the one `BIT` of conntrack marks that marks established connections that policies no longer allow. Other software that uses the same bit blocks connections or unblocks them")
	fs.DurationVar(&o.rememberVerdicts, "remember-verdicts", o.rememberVerdicts, "how long the kernel accepts further connections of a kind (source, destination, protocol and port) that policies allow without asking the agent, at least 20s; a change of policies or pods ends it at once. If no agent runs, such connections are accepted for as long. 0 has every connection decided by the agent")
	fs.StringVar(&o.rememberMark, "remember-mark", o.rememberMark, "with --remember-verdicts, the one `BIT` of packet marks, not of conntrack marks, that the agent uses for it")
	fs.TextVar(&o.earlyUDP, "early-udp", o.earlyUDP, "`WHEN` to queue new UDP connections to Services: true before routing, false after it, where kernels before 6.12 lose one of two DNS queries that are sent at the same time; auto decides by the kernel's version")
	fs.BoolVar(&o.failOpen.NoAgent, "fail-open", o.failOpen.NoAgent, "accept new connections of selected pods while no agent can decide: none runs, or it has not read the cluster yet; when false they wait and are then dropped")
	fs.BoolVar(&o.failOpen.QueueFull, "fail-open-queue-full", o.failOpen.QueueFull, "accept packets while the queue is full, so that a flood gets past the policies; when false they are dropped and counted")
	fs.BoolVar(&o.failOpen.UnknownPacket, "fail-open-unknown-packet", o.failOpen.UnknownPacket, "accept packets that cannot be parsed, and packets of unknown pods of this node; when false they are dropped, the latter after a second")
	fs.BoolVar(&o.failOpen.InternalError, "fail-open-internal-error", o.failOpen.InternalError, "accept a packet whose evaluation fails because of a bug in the agent; when false it is dropped")
	fs.StringSliceVar(&o.dnsResolvers, "dns-resolvers", o.dnsResolvers, "the only DNS resolvers, as `IP[:PORT],...`, whose answers count for domain names in policies; empty uses the cluster's DNS Service and the pods behind it (in kube-system, k8s-app=kube-dns) and the nameservers of this machine. Names that pods resolve elsewhere match nothing, and a listed resolver that lies can open any address")
	fs.StringSliceVar(&o.sourceCheckExempt, "source-check-exempt", o.sourceCheckExempt, "`INTERFACES`, or patterns such as net*, that accept packets from any source, in addition to the uplinks that the agent finds. On all other interfaces, packets from a source that is not routed to the interface are dropped while a policy selects a pod of this node. * disables the check: pods with raw sockets can then send with the addresses of other pods and get past policies")
	fs.StringSliceVar(&o.tunnelPorts, "tunnel-ports", o.tunnelPorts, "UDP `PORTS` at which programs of this node receive tunnels (flannel's udp backend, a VPN, FOU), in addition to those of its vxlan, geneve and bareudp devices, which the agent finds. Packets from pods of this node to these ports are dropped while a policy selects a pod. Through a port that is missing here, pods can send packets past every policy")
	fs.StringSliceVar(&o.podTunnels, "pod-tunnels", o.podTunnels, "`TUNNELS` of this node to which its pods may send, each as udp/PORT, gre, ipip, ipv6, l2tp or mpls. Policies do not apply to the packets inside")
	fs.BoolVar(&o.logDenied, "log-denied", o.logDenied, "log denied packets with their pods and the policies that denied them, at most ten a second and five of one pod in ten seconds, and every ten seconds how many were not logged")
	fs.BoolVar(&o.flowLog, "flow-log", o.flowLog, "write records of flows to the standard output, a line of JSON each: every ten seconds those that have changed, at most 4,096, and denied packets, at most five of one pod")
	fs.Int64Var(&o.evaluationMemory, "evaluation-memory", o.evaluationMemory, "memory in `BYTES` to cache which rules select which peers, for all pods of the node together. With too little, peers are evaluated repeatedly, and packets under large policies wait for it")
	fs.StringVar(&o.probeSocket, "probe-socket", o.probeSocket, "`PATH` of a unix socket for the command probe, which asks this very process when another agent runs on the node, too; empty means none")
	fs.TextVar(&o.podAddressSource, "pod-address-source", o.podAddressSource, "`SOURCE` of the addresses of new pods of this node: cni-cache (--cni-cache-dir, when the network of the pod is made; not ready while the folder cannot be read), status (the pod's status, seconds later; first packets wait or are dropped meanwhile), or auto, which uses the folder if it is there, and the status")
	fs.StringVar(&o.cniCacheDir, "cni-cache-dir", o.cniCacheDir, "`FOLDER` where the container runtime keeps the results of network plugins. It is only read. With a wrong folder, addresses of new pods are those of their status")
	fs.IntVar(&o.maxCrashes, "max-crashes", o.maxCrashes, "run the agent as a child of this process, which starts it again at once when it crashes, and exits with its status after so many crashes within a minute. 0 runs the agent in this process")
	fs.StringVar(&o.snapshotCache, "snapshot-cache", o.snapshotCache, "`FILE` that keeps the state of the cluster across restarts, so that an agent that starts enforces it until the API server has answered; its folder must exist and be writable. Empty keeps none: packets of selected pods then wait for the API server")
	fs.DurationVar(&o.snapshotMaxAge, "snapshot-cache-max-age", o.snapshotMaxAge, "how long ago the state in --snapshot-cache may have been current; an older file is ignored. With a long time, an agent that starts during an outage enforces an old state")
	fs.BoolVar(&o.cleanup, "cleanup", o.cleanup, "remove everything that the agent has installed in the kernel, its bits of connection marks (--mark and --block-mark) and the file of --snapshot-cache, and exit. Pods are then not isolated")
	fs.BoolVar(&o.cleanupWait, "cleanup-wait", o.cleanupWait, "like --cleanup, but wait to be terminated instead of exiting, for a DaemonSet that cleans all nodes")
}

// validate returns an error for each flag with a wrong value.
func (o *options) validate(args []string) error {
	var errs []error
	fault := func(flag string, value any, format string, args ...any) {
		errs = append(errs, flagError(flag, value, format, args...))
	}
	if len(args) > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %q", args[0]))
	}
	if o.queue < 0 || o.queue > 65535 {
		fault("nfqueue-id", o.queue, "must be in 0-65535")
	}
	if o.queues < 1 || o.queues > maxQueues {
		fault("nfqueue-count", o.queues, "must be in 1-%d", maxQueues)
	} else if last := o.queue + 2*o.queues + 2; last > 65535 {
		fault("nfqueue-count", o.queues, "the last of the agent's %d queue numbers would be %d, above 65535", 2*o.queues+3, last)
	}
	if o.share < 0 || o.share > int(steer.MaxShare) {
		fault("pod-share", o.share, "must be in 0-%d", steer.MaxShare)
	}
	mark, err := parseMark(o.mark)
	if err != nil {
		fault("mark", o.mark, "%v", err)
	}
	if blockMark, err := parseMark(o.blockMark); err != nil {
		fault("block-mark", o.blockMark, "%v", err)
	} else if blockMark == mark {
		fault("block-mark", o.blockMark, "is the bit of --mark")
	}
	if rememberMark, err := parseMark(o.rememberMark); err != nil {
		fault("remember-mark", o.rememberMark, "%v", err)
	} else if o.rememberVerdicts != 0 && rememberMark == mark {
		fault("remember-mark", o.rememberMark, "is the bit of --mark")
	}
	if d := o.rememberVerdicts; d != 0 && (d < verdictcache.MinAllowedFor || d > maxRememberVerdicts || d%time.Second != 0) {
		fault("remember-verdicts", d, "must be 0 or whole seconds in %s-%s", verdictcache.MinAllowedFor, maxRememberVerdicts)
	}
	for _, s := range o.dnsResolvers {
		if _, err := resolvers.Parse(s); err != nil {
			errs = append(errs, fmt.Errorf("--dns-resolvers: %w", err))
		}
	}
	for _, port := range o.tunnelPorts {
		if _, err := agent.ParsePort(port); err != nil {
			fault("tunnel-ports", port, "%v", err)
		}
	}
	for _, tunnel := range o.podTunnels {
		if err := new(agent.PodTunnels).ParsePodTunnel(tunnel); err != nil {
			fault("pod-tunnels", tunnel, "%v", err)
		}
	}
	for _, pattern := range o.sourceCheckExempt {
		if err := links.CheckPattern(pattern); err != nil {
			fault("source-check-exempt", pattern, "must be the name of an interface or a pattern (%v)", err)
		}
	}
	if o.evaluationMemory < minEvaluationMemory {
		fault("evaluation-memory", o.evaluationMemory, "must be at least %d bytes", minEvaluationMemory)
	}
	if !filepath.IsAbs(o.cniCacheDir) {
		fault("cni-cache-dir", o.cniCacheDir, "must be an absolute path")
	}
	if o.maxCrashes < 0 {
		fault("max-crashes", o.maxCrashes, "must not be negative")
	}
	if o.podWatches == agent.NeededPods && o.manifests != "" {
		fault("pod-watches", o.podWatches, "needs an API server, and cannot be used together with --manifests=%s", o.manifests)
	}
	if o.maxPodWatches < 1 || o.maxPodWatches > policycache.MostNeededWatches {
		fault("max-pod-watches", o.maxPodWatches, "must be in 1-%d", policycache.MostNeededWatches)
	}
	if o.snapshotCache != "" && o.manifests != "" {
		fault("snapshot-cache", o.snapshotCache, "cannot be used together with --manifests=%s", o.manifests)
	}
	if o.snapshotMaxAge < minSnapshotMaxAge {
		fault("snapshot-cache-max-age", o.snapshotMaxAge, "must be at least %s", minSnapshotMaxAge)
	}
	if o.snapshotCache != "" {
		if info, err := os.Stat(filepath.Dir(o.snapshotCache)); err != nil {
			fault("snapshot-cache", o.snapshotCache, "needs a folder (%v)", err)
		} else if !info.IsDir() {
			fault("snapshot-cache", o.snapshotCache, "needs a folder, and %s is none", filepath.Dir(o.snapshotCache))
		}
	}
	if o.metrics.secure && o.manifests != "" {
		fault("metrics-secure", true, "needs an API server, and cannot be used together with --manifests=%s", o.manifests)
	}
	if o.kubeconfig != "" && o.manifests != "" {
		fault("manifests", o.manifests, "cannot be used together with --kubeconfig=%s", o.kubeconfig)
	}
	if o.manifests != "" {
		if _, err := os.ReadDir(o.manifests); err != nil {
			fault("manifests", o.manifests, "must be a directory that can be read (%v)", err)
		}
	}
	return errors.Join(append(errs, o.sharedOptions.validate())...)
}

// parseMark returns a mark with one bit that the agent may use.
func parseMark(s string) (uint32, error) {
	mark, err := strconv.ParseUint(s, 0, 32)
	if err != nil {
		return 0, errors.New("must be a number of 32 bits")
	}
	return uint32(mark), steer.CheckMark(uint32(mark))
}

// config returns the configuration of the agent for valid options.
func (o *options) config(ctx context.Context) (agent.Config, error) {
	mark, _ := parseMark(o.mark)
	blockMark, _ := parseMark(o.blockMark)
	cfg := agent.Config{
		PodWatches:          o.podWatches,
		MaxPodWatches:       o.maxPodWatches,
		Manifests:           o.manifests,
		Kinds:               o.kinds.Enabled(),
		Features:            o.features,
		Audit:               o.audit,
		Queue:               uint16(o.queue),
		Queues:              uint16(o.queues),
		Share:               uint32(o.share),
		Divert:              o.divert,
		Mark:                mark,
		BlockMark:           blockMark,
		EarlyUDP:            o.earlyUDP,
		SourceCheckExempt:   o.sourceCheckExempt,
		FailOpen:            o.failOpen,
		LogDenied:           o.logDenied,
		EvaluationMemory:    o.evaluationMemory,
		SnapshotCache:       o.snapshotCache,
		SnapshotCacheMaxAge: o.snapshotMaxAge,
		MetricsBindAddress:  o.metricsBindAddress,
		ProbeSocket:         o.probeSocket,
		PodAddressSource:    o.podAddressSource,
		CNICacheDir:         o.cniCacheDir,
	}
	if o.flowLog {
		cfg.FlowLog = os.Stdout
	}
	if o.rememberVerdicts > 0 {
		cfg.RememberVerdicts = o.rememberVerdicts
		cfg.RememberMark, _ = parseMark(o.rememberMark)
	}
	for _, s := range o.tunnelPorts {
		port, _ := agent.ParsePort(s)
		cfg.TunnelPorts = append(cfg.TunnelPorts, port)
	}
	for _, s := range o.podTunnels {
		_ = cfg.PodTunnels.ParsePodTunnel(s)
	}
	for _, s := range o.dnsResolvers {
		resolver, _ := resolvers.Parse(s)
		cfg.DNSResolvers = append(cfg.DNSResolvers, resolver)
	}
	var err error
	if cfg.NodeName, err = o.node(); err != nil {
		return cfg, err
	}
	if o.manifests != "" {
		return cfg, nil
	}
	config, err := o.restConfig()
	if err != nil {
		return cfg, err
	}
	if cfg.MetricsAccess, err = o.metrics.access(ctx, config, cfg.NodeName); err != nil {
		return cfg, err
	}
	cfg.API, err = policycache.Connect(config)
	return cfg, err
}

// node returns the name of the node as the kubelet derives it.
func (o *options) node() (string, error) {
	name := o.nodeName
	if name == "" {
		var err error
		if name, err = os.Hostname(); err != nil {
			return "", fmt.Errorf("--hostname-override is empty and the host has no name: %w", err)
		}
	}
	name = strings.ToLower(strings.TrimSpace(name))
	if name == "" {
		return "", fmt.Errorf("--hostname-override=%q: the node's name is empty", o.nodeName)
	}
	return name, nil
}
