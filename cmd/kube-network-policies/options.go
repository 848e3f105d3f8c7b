package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json

	"sigs.k8s.io/kube-network-policies/pkg/agent"
	"sigs.k8s.io/kube-network-policies/pkg/conntrack"
	"sigs.k8s.io/kube-network-policies/pkg/links"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
	"sigs.k8s.io/kube-network-policies/pkg/policycache"
	"sigs.k8s.io/kube-network-policies/pkg/resolvers"
	"sigs.k8s.io/kube-network-policies/pkg/steer"
)

const (
	// maxQueues is the most queues that are worth having: one for each core of
	// a large machine.
	maxQueues = 64
	// defaultMaxQueues leaves the cores of a large node to its pods.
	defaultMaxQueues = 4
	// minEvaluationMemory is enough for the peers of a few pods.
	minEvaluationMemory = 1 << 20
)

// options are the flags.
type options struct {
	nodeName           string
	kubeconfig         string
	manifests          string
	queue              int
	queues             int
	share              int
	divert             steer.Divert
	mark               string
	blockEstablished   bool
	blockMark          string
	earlyUDP           steer.EarlyUDP
	failOpen           agent.FailOpen
	kinds              kindFlags
	sourceCheckExempt  []string
	tunnelPorts        []string
	podTunnels         []string
	dnsResolvers       []string
	featureGates       map[string]bool
	metricsBindAddress string
	logDenied          bool
	evaluationMemory   int64
	cleanup            bool
	logging            *logsapi.LoggingConfiguration
}

func newOptions() *options {
	return &options{
		queue:              100,
		queues:             min(runtime.NumCPU(), defaultMaxQueues),
		share:              int(steer.DefaultShare),
		mark:               fmt.Sprintf("%#x", steer.DefaultMark),
		blockMark:          fmt.Sprintf("%#x", conntrack.DefaultMark),
		featureGates:       map[string]bool{},
		metricsBindAddress: ":9080",
		evaluationMemory:   policy.DefaultMemory,
		logging:            logsapi.NewLoggingConfiguration(),
	}
}

func (o *options) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.nodeName, "hostname-override", o.nodeName, "name of the Node object of this machine; empty takes the host name. A wrong name enforces nothing, because no pod runs on such a node")
	fs.StringVar(&o.kubeconfig, "kubeconfig", o.kubeconfig, "kubeconfig file that tells the API server; empty uses the service account of the agent's pod")
	fs.StringVar(&o.manifests, "manifests", o.manifests, "directory of Kubernetes manifests (pods, namespaces, nodes, network policies) to enforce instead of an API server's, read again as files change")
	fs.IntVar(&o.queue, "nfqueue-id", o.queue, "number of the first NFQUEUE. While another process holds it the agent is not ready")
	fs.IntVar(&o.queues, "nfqueue-count", o.queues, "how many queues, from --nfqueue-id up; the kernel spreads connections over them by CPU")
	fs.IntVar(&o.share, "pod-share", o.share, "how many packets a second each pod of this node may have judged ahead of what exceeds the shares of others; more of them is judged as capacity is left. 0 means no shares: a pod that floods delays the first packets of all others")
	fs.TextVar(&o.divert, "divert", o.divert, "how packets get into the queue: queue (nftables statement), xtables (NFQUEUE target through nft_compat), or auto, which takes what the kernel has. One that the kernel lacks is refused at start")
	fs.StringVar(&o.mark, "mark", o.mark, "the one bit of packet marks and conntrack marks that is the agent's own. Software that uses the same bit breaks enforcement")
	fs.BoolVar(&o.blockEstablished, "block-established", o.blockEstablished, "block established connections that policies no longer allow, until they allow them again; when false policies apply to new connections only")
	fs.StringVar(&o.blockMark, "block-mark", o.blockMark, "with --block-established, the one bit of conntrack marks that marks blocked connections. Software that uses the same bit blocks connections or unblocks them")
	fs.TextVar(&o.earlyUDP, "early-udp", o.earlyUDP, "queue new UDP connections to Services before routing (true) or after it (false). With false, kernels before 6.12 lose one of two DNS queries that are sent at the same time; auto decides by the kernel's version")
	fs.BoolVar(&o.failOpen.NoAgent, "fail-open", o.failOpen.NoAgent, "accept new connections of selected pods while no agent can decide: none runs, or it has not seen the cluster yet; when false they wait and then drop")
	fs.BoolVar(&o.failOpen.QueueFull, "fail-open-queue-full", o.failOpen.QueueFull, "accept packets that find the queue full, so that a flood delivers what policy denies; when false they drop and are counted")
	fs.BoolVar(&o.failOpen.UnknownPacket, "fail-open-unknown-packet", o.failOpen.UnknownPacket, "accept packets that cannot be parsed and packets of pods of this node that are not known; when false they drop, the latter after a second")
	fs.BoolVar(&o.failOpen.InternalError, "fail-open-internal-error", o.failOpen.InternalError, "accept a packet whose judgement fails by a defect of the agent; when false it drops")
	o.kinds = addKindFlags(fs, "enforce %s; while its CustomResourceDefinition is not installed it is waited for. When false none has effect. Agents and status writer need the same value")
	fs.StringSliceVar(&o.dnsResolvers, "dns-resolvers", o.dnsResolvers, "the only DNS resolvers from whose answers pods learn what domain names in administrators' policies mean, as IP[:port],…; empty takes the cluster's DNS Service and the pods behind it (in kube-system, k8s-app=kube-dns) and the nameservers of this machine. Names that pods look up elsewhere open nothing, and a resolver that lies opens what it likes")
	fs.StringSliceVar(&o.sourceCheckExempt, "source-check-exempt", o.sourceCheckExempt, "names of interfaces, or patterns such as net*, by which packets of any source may come in, besides the uplinks that the agent finds. By every other one packets are dropped whose source is not reached by it, while a policy selects a pod of this node. * switches the check off: pods with raw sockets can then send with addresses of others, and be judged as these are")
	fs.StringSliceVar(&o.tunnelPorts, "tunnel-ports", o.tunnelPorts, "UDP ports at which programs of this node take tunnels in (flannel's udp backend, a VPN, FOU), besides those of its vxlan, geneve and bareudp devices, which the agent finds. What pods of this node send there is dropped while a policy selects a pod; a port that is missing lets them put packets past every policy")
	fs.StringSliceVar(&o.podTunnels, "pod-tunnels", o.podTunnels, "tunnels of this node into which its pods may send, as udp/PORT, gre, ipip, ipv6, l2tp or mpls. Policy does not see what comes out of them")
	addFeatureGates(fs, &o.featureGates)
	fs.StringVar(&o.metricsBindAddress, "metrics-bind-address", o.metricsBindAddress, "address and port of /metrics, /livez and /readyz")
	fs.BoolVar(&o.logDenied, "log-denied", o.logDenied, "log denied packets with their pods and the policy that denied, at most ten a second")
	fs.Int64Var(&o.evaluationMemory, "evaluation-memory", o.evaluationMemory, "bytes to remember which rules select which peers, for all pods of the node together. Too few, and peers are evaluated again and again, those of long policies while their packets wait")
	fs.BoolVar(&o.cleanup, "cleanup", o.cleanup, "remove everything the agent has put into the kernel, and exit. Pods are then not isolated")
	logsapi.AddFlags(o.logging, fs)
}

// validate names every flag whose value cannot work, and the value.
func (o *options) validate(args []string) error {
	var errs []error
	fault := func(flag string, value any, format string, more ...any) {
		errs = append(errs, fmt.Errorf("--%s=%v: %s", flag, value, fmt.Sprintf(format, more...)))
	}
	if len(args) > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %q", args[0]))
	}
	if o.queue < 0 || o.queue > 65535 {
		fault("nfqueue-id", o.queue, "must be in 0-65535")
	}
	if o.queues < 1 || o.queues > maxQueues {
		fault("nfqueue-count", o.queues, "must be in 1-%d", maxQueues)
	} else if o.queue+o.queues-1 > 65535 {
		fault("nfqueue-count", o.queues, "the last queue would be number %d, above 65535", o.queue+o.queues-1)
	}
	if last := o.queue + 2*o.queues; o.share > 0 && o.queue+o.queues-1 <= 65535 && last > 65535 {
		fault("nfqueue-count", o.queues, "the last queue for what exceeds --pod-share would be number %d, above 65535", last)
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
	} else if o.blockEstablished && blockMark == mark {
		fault("block-mark", o.blockMark, "is the bit of --mark")
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
	if o.kubeconfig != "" && o.manifests != "" {
		fault("manifests", o.manifests, "excludes --kubeconfig=%s", o.kubeconfig)
	}
	if o.manifests != "" {
		if _, err := os.ReadDir(o.manifests); err != nil {
			fault("manifests", o.manifests, "must be a directory that can be read (%v)", err)
		}
	}
	if err := logsapi.Validate(o.logging, nil, nil).ToAggregate(); err != nil {
		fault("logging-format", o.logging.Format, "%v", err)
	}
	if _, _, err := net.SplitHostPort(o.metricsBindAddress); err != nil {
		fault("metrics-bind-address", o.metricsBindAddress, "must be host:port (%v)", err)
	}
	return errors.Join(append(errs, checkFeatureGates(o.featureGates))...)
}

// parseMark reads one bit that can be ours.
func parseMark(s string) (uint32, error) {
	mark, err := strconv.ParseUint(s, 0, 32)
	if err != nil {
		return 0, errors.New("must be a number of 32 bits")
	}
	return uint32(mark), steer.CheckMark(uint32(mark))
}

// config returns the configuration of the agent. The options are valid.
func (o *options) config() (agent.Config, error) {
	mark, _ := parseMark(o.mark)
	cfg := agent.Config{
		Manifests:          o.manifests,
		Kinds:              o.kinds.enabled(),
		Features:           features(o.featureGates),
		Queue:              uint16(o.queue),
		Queues:             uint16(o.queues),
		Share:              uint32(o.share),
		Divert:             o.divert,
		Mark:               mark,
		EarlyUDP:           o.earlyUDP,
		SourceCheckExempt:  o.sourceCheckExempt,
		FailOpen:           o.failOpen,
		LogDenied:          o.logDenied,
		EvaluationMemory:   o.evaluationMemory,
		MetricsBindAddress: o.metricsBindAddress,
	}
	if o.blockEstablished {
		cfg.BlockMark, _ = parseMark(o.blockMark)
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
	if o.manifests == "" {
		cfg.API, err = o.connect()
	}
	return cfg, err
}

// node returns the node's name as the kubelet makes it.
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

// connect returns where the cluster is read from.
func (o *options) connect() (*policycache.APIServer, error) {
	config, err := restConfig(o.kubeconfig)
	if err != nil {
		return nil, err
	}
	return policycache.Connect(config)
}
