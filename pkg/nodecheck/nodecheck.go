// Package nodecheck finds what on a node keeps network policies from being enforced, or
// enforces policies beside the agent: by the names that other software uses, and by what the
// agent itself knows of the node and that does not fit together. It changes nothing.
package nodecheck

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"
)

// interval is the time between two looks at the interfaces. A node that is new has no bridge
// yet when its agent starts.
const interval = time.Minute

// Node is what is read of the node.
type Node interface {
	// Interfaces returns the names of network interfaces.
	Interfaces() ([]string, error)
	// BridgePort reports whether an interface is a port of a Linux bridge.
	BridgePort(name string) bool
	// Sysctl returns a value below /proc/sys, and an error that wraps fs.ErrNotExist if
	// the kernel does not have it.
	Sysctl(path string) (string, error)
	// Chains returns the names of the tables and chains of nftables. Those that iptables
	// makes by nftables are among them.
	Chains() ([]string, error)
}

// Cause says what kind of problem was found: the label of the metric.
type Cause string

const (
	// BridgeNetfilter means that packets between ports of one bridge pass no hook.
	BridgeNetfilter Cause = "bridge_netfilter"
	// DataPlane means that another data plane may forward packets past netfilter.
	DataPlane Cause = "data_plane"
	// PolicyEngine means that other software has rules for network policies.
	PolicyEngine Cause = "policy_engine"
	// OwnNode means that the pods of the agent's node name are not those of this machine.
	OwnNode Cause = "own_node"
	// PodInterface means that no interface leads to any pod.
	PodInterface Cause = "pod_interface"
	// PodRanges means that no pod has an address in the ranges of the Node.
	PodRanges Cause = "pod_ranges"
	// Queue means that packets are sent to the queues and do not reach them.
	Queue Cause = "queue"
	// Unknown means that something could not be read.
	Unknown Cause = "unknown"
)

var causes = []Cause{BridgeNetfilter, DataPlane, PolicyEngine, OwnNode, PodInterface, PodRanges, Queue, Unknown}

// Problem is what an operator should know of the node.
type Problem struct {
	Cause   Cause
	Message string
	// Found is the name of what was found, or why it could not be read.
	Found string
}

// Interfaces of data planes that forward packets of pods by eBPF or Open vSwitch.
var dataPlanes = map[string]string{
	"cilium_host": "Cilium",
	"ovn-k8s-mp0": "OVN-Kubernetes",
	"antrea-gw0":  "Antrea",
	"ovn0":        "Kube-OVN",
}

// engines are prefixes of tables and chains of software that enforces policies.
var engines = []struct{ prefix, name string }{
	{"kindnet-network-policies", "kindnetd"},
	{"KUBE-ROUTER-", "kube-router"},
	{"KUBE-NWPLCY-", "kube-router"},
	{"cali-", "Calico"},
	{"calico", "Calico"},
	{"AZURE-NPM", "Azure Network Policy Manager"},
	{"WEAVE-NPC", "Weave Net"},
}

// Checker finds the problems of a node, each cause and program once, and reports them.
type Checker struct {
	node  Node
	gauge *prometheus.GaugeVec
	// engines are the problems that were found at start. Tables and chains are not read
	// again: a node can have tens of thousands.
	engines    []Problem
	interfaces []Problem
	facts      comparison
	poked      chan struct{}

	mu     sync.Mutex
	health error
}

// New looks at a node, and logs and exports its problems. Every cause has a series.
func New(ctx context.Context, node Node, reg prometheus.Registerer) *Checker {
	c := &Checker{node: node, engines: checkChains(node), poked: make(chan struct{}, 1), gauge: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "netpol_node_problems",
		Help: "What on this node may keep policies from being enforced, or enforces policies too, by cause. Tables and chains are looked at when the agent starts, all else every minute.",
	}, []string{"cause"})}
	reg.MustRegister(c.gauge)
	log(ctx, c.engines)
	c.lookAtInterfaces(ctx)
	c.export()
	return c
}

// Run looks at the node again every minute until ctx ends, and compares what read returns.
func (c *Checker) Run(ctx context.Context, read func() Facts) error {
	again := time.NewTicker(interval)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.poked:
			c.report(ctx, c.facts.pokedBy(read()))
		case <-again.C:
			c.lookAtInterfaces(ctx)
			c.report(ctx, c.facts.lookAt(read()))
		}
		c.export()
	}
}

// Poke has what concerns the agent's own Node looked at now.
func (c *Checker) Poke() {
	select {
	case c.poked <- struct{}{}:
	default:
	}
}

// Healthy returns an error if packets do not reach the agent.
func (c *Checker) Healthy() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.health
}

func (c *Checker) lookAtInterfaces(ctx context.Context) {
	found := checkInterfaces(c.node)
	log(ctx, without(found, c.interfaces))
	c.interfaces = found
}

// report logs which of the problems that facts have are new.
func (c *Checker) report(ctx context.Context, found []Problem) {
	log(ctx, without(found, c.facts.problems))
	c.facts.problems = found
	c.mu.Lock()
	defer c.mu.Unlock()
	c.health = nil
	for _, p := range found {
		if p.Cause == Queue {
			c.health = errors.New(p.Message + ": " + p.Found)
		}
	}
}

// without returns the problems that are not in known.
func without(problems, known []Problem) []Problem {
	return slices.DeleteFunc(slices.Clone(problems), func(p Problem) bool { return slices.Contains(known, p) })
}

// export sets the metric.
func (c *Checker) export() {
	for _, cause := range causes {
		n := 0
		for _, p := range slices.Concat(c.engines, c.interfaces, c.facts.problems) {
			if p.Cause == cause {
				n++
			}
		}
		c.gauge.WithLabelValues(string(cause)).Set(float64(n))
	}
}

func log(ctx context.Context, problems []Problem) {
	for _, p := range problems {
		klog.FromContext(ctx).Error(nil, p.Message, "cause", p.Cause, "found", p.Found)
	}
}

func checkInterfaces(node Node) []Problem {
	names, err := node.Interfaces()
	if err != nil {
		return []Problem{unknown("interfaces", err)}
	}
	var problems []Problem
	bridged := false
	for _, name := range names {
		bridged = bridged || node.BridgePort(name)
		if program, ok := dataPlanes[name]; ok {
			problems = append(problems, Problem{DataPlane, "Policies are not enforced for packets that " + program + " forwards past netfilter", "interface " + name})
		}
	}
	if bridged {
		problems = append(problems, checkBridges(node)...)
	}
	return problems
}

func checkBridges(node Node) []Problem {
	var problems []Problem
	for _, name := range []string{"bridge-nf-call-iptables", "bridge-nf-call-ip6tables"} {
		value, err := node.Sysctl("net/bridge/" + name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return []Problem{{BridgeNetfilter, "Policies are not enforced between pods on one bridge: load the kernel module", "no br_netfilter"}}
		case err != nil:
			problems = append(problems, unknown("net.bridge."+name, err))
		case strings.TrimSpace(value) == "0":
			problems = append(problems, Problem{BridgeNetfilter, "Policies are not enforced between pods on one bridge: set it to 1", "net.bridge." + name + "=0"})
		}
	}
	return problems
}

func checkChains(node Node) []Problem {
	names, err := node.Chains()
	if err != nil {
		return []Problem{unknown("tables and chains", err)}
	}
	var problems []Problem
	seen := map[string]bool{}
	for _, name := range names {
		for _, engine := range engines {
			if strings.HasPrefix(name, engine.prefix) && !seen[engine.name] {
				seen[engine.name] = true
				problems = append(problems, Problem{PolicyEngine, engine.name + " enforces network policies too, or has left rules behind: a connection needs both to allow it", name})
			}
		}
	}
	return problems
}

func unknown(what string, err error) Problem {
	return Problem{Unknown, "What else affects policies on this node is not known: " + what + " cannot be read", err.Error()}
}
