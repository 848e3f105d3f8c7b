// Package nodecheck finds what prevents a node from enforcing network policies, and other software
// that enforces them, too. It recognizes other software by the names it uses, and compares what
// the agent itself knows about the node. It changes nothing.
package nodecheck

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/base/runner"
)

// interval is the time between two checks. One at the start is not enough: for example, a new node
// has no bridge yet when its agent starts.
const interval = time.Minute

// Node reads the state of a node.
type Node interface {
	// Interfaces returns the names of network interfaces.
	Interfaces() ([]string, error)
	// BridgePort reports whether an interface is a port of a Linux bridge.
	BridgePort(name string) bool
	// Sysctl returns a value below /proc/sys. The error wraps fs.ErrNotExist if the kernel does
	// not have it.
	Sysctl(path string) (string, error)
	// Chains returns the names of all nftables tables and chains, including those of
	// iptables-nft.
	Chains() ([]string, error)
	// Flowtables returns the flowtables of all nftables tables.
	Flowtables() ([]Flowtable, error)
	// Dropping returns the names of the base chains with the policy drop that forwarded packets
	// pass.
	Dropping() ([]string, error)
	// Untracked returns the number of packets of pods that were decided without connection
	// tracking (NOTRACK).
	Untracked() (uint64, error)
	// Helpers returns the connection tracking helpers in nftables tables.
	Helpers() ([]string, error)
	// Programs returns the programs and rules that may forward packets of pods past netfilter.
	Programs() ([]string, error)
}

// Flowtable forwards packets of established connections past all rules.
type Flowtable struct {
	Table, Name string
	Devices     []string
	Hardware    bool // devices that support it forward packets themselves
}

// Cause is the kind of a problem, and the label of the metric.
type Cause string

const (
	// BridgeNetfilter means that packets between ports of a bridge do not pass the IP hooks.
	BridgeNetfilter Cause = "bridge_netfilter"
	// DataPlane means that another data plane may forward packets past netfilter.
	DataPlane Cause = "data_plane"
	// Offload means that a flowtable forwards packets of established connections.
	Offload Cause = "flowtable"
	// PolicyEngine means that other software has rules for network policies.
	PolicyEngine Cause = "policy_engine"
	// Firewall means that other software drops all packets that it does not explicitly accept.
	Firewall Cause = "firewall"
	// Untracked means that other software keeps packets of pods from connection tracking.
	Untracked Cause = "untracked"
	// Helper means that connection tracking expects further connections because of the payload
	// of others.
	Helper Cause = "helper"
	// OwnNode means that the pods of the agent's node name are not those of this machine.
	OwnNode Cause = "own_node"
	// PodInterface means that no interface leads to any pod.
	PodInterface Cause = "pod_interface"
	// PodRanges means that no pod has an address in the ranges of the Node.
	PodRanges Cause = "pod_ranges"
	// Addresses means that statuses claim addresses that belong to another object.
	Addresses Cause = "addresses"
	// Queue means that packets sent to the queues do not reach them.
	Queue Cause = "queue"
	// Unknown means that something could not be read.
	Unknown Cause = "unknown"
)

var causes = []Cause{BridgeNetfilter, DataPlane, Offload, PolicyEngine, Firewall, Untracked, Helper, OwnNode, PodInterface, PodRanges, Addresses, Queue, Unknown}

// Problem is something that an operator should know about the node.
type Problem struct {
	Cause   Cause
	Message string
	// Found names what was found, or says why it could not be read.
	Found string
	// Devices are the interfaces concerned. They do not distinguish problems.
	Devices string
}

// same reports whether p and q are the same problem.
func (p Problem) same(q Problem) bool { return p.Cause == q.Cause && p.Found == q.Found }

// dataPlanes are the interfaces of data planes that forward packets of pods by eBPF or Open
// vSwitch.
var dataPlanes = map[string]string{
	"cilium_host": "Cilium",
	"ovn-k8s-mp0": "OVN-Kubernetes",
	"antrea-gw0":  "Antrea",
	"ovn0":        "Kube-OVN",
}

// engines are the name prefixes of tables and chains of software that enforces policies.
var engines = []struct{ prefix, name string }{
	{"kindnet-network-policies", "kindnetd"},
	{"KUBE-ROUTER-", "kube-router"},
	{"KUBE-NWPLCY-", "kube-router"},
	{"cali-", "Calico"},
	{"calico", "Calico"},
	{"AZURE-NPM", "Azure Network Policy Manager"},
	{"WEAVE-NPC", "Weave Net"},
}

// Checker finds the problems of a node, and reports each when it is new.
type Checker struct {
	node  Node
	gauge *prometheus.GaugeVec
	// engines are the other policy engines found at the start. Tables and chains are not read
	// again, because a node can have tens of thousands.
	engines []Problem
	// nodeProblems are the problems that the last look found.
	nodeProblems []Problem
	// untracked is the count of untracked packets at the last look, valid if looked is set.
	untracked uint64
	looked    bool
	facts     comparison
	poked     chan struct{}

	mu     sync.Mutex
	health error
}

// New checks a node, and logs and exports its problems. The metric has a series for each cause.
func New(ctx context.Context, node Node, reg prometheus.Registerer) *Checker {
	c := &Checker{node: node, engines: checkChains(node), poked: make(chan struct{}, 1), gauge: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "netpol_node_problems",
		Help: "What on this node may keep policies from being enforced, or enforces policies too, by cause. Other policy engines are looked for when the agent starts, the rest every minute.",
	}, []string{"cause"})}
	reg.MustRegister(c.gauge)
	log(ctx, c.engines)
	c.look(ctx)
	c.export()
	return c
}

// Run checks the node and the facts that read returns every minute until ctx ends.
func (c *Checker) Run(ctx context.Context, read func() Facts) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.poked:
			c.report(ctx, c.facts.checkOwnNodeAgain(read()))
		case <-ticker.C:
			c.look(ctx)
			c.report(ctx, c.facts.check(read()))
		}
		c.export()
	}
}

// Poke triggers a check of the facts about the agent's own Node.
func (c *Checker) Poke() {
	runner.Signal(c.poked)
}

// Healthy returns an error if packets do not reach the agent.
func (c *Checker) Healthy() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.health
}

// look checks the node, except for other policy engines, and logs new problems.
func (c *Checker) look(ctx context.Context) {
	found := slices.Concat(checkInterfaces(c.node), checkFlowtables(c.node), checkFirewalls(c.node), checkPrograms(c.node), c.checkUntracked(), checkHelpers(c.node))
	log(ctx, newProblems(found, c.nodeProblems))
	c.nodeProblems = found
}

// report logs new problems among those found in Facts.
func (c *Checker) report(ctx context.Context, found []Problem) {
	log(ctx, newProblems(found, c.facts.problems))
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

// newProblems returns the problems that are not in known.
func newProblems(problems, known []Problem) []Problem {
	return slices.DeleteFunc(slices.Clone(problems), func(p Problem) bool { return slices.ContainsFunc(known, p.same) })
}

func (c *Checker) export() {
	for _, cause := range causes {
		n := 0
		for _, p := range slices.Concat(c.engines, c.nodeProblems, c.facts.problems) {
			if p.Cause == cause {
				n++
			}
		}
		c.gauge.WithLabelValues(string(cause)).Set(float64(n))
	}
}

func log(ctx context.Context, problems []Problem) {
	for _, p := range problems {
		keys := []any{"cause", p.Cause, "found", p.Found}
		if p.Devices != "" {
			keys = append(keys, "devices", p.Devices)
		}
		klog.FromContext(ctx).Error(nil, p.Message, keys...)
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
			problems = append(problems, Problem{Cause: DataPlane, Message: "Policies are not enforced for packets that " + program + " forwards past netfilter", Found: "interface " + name})
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
			return []Problem{{Cause: BridgeNetfilter, Message: "Policies are not enforced between pods on one bridge: load the kernel module", Found: "no br_netfilter"}}
		case err != nil:
			problems = append(problems, unknown("net.bridge."+name, err))
		case strings.TrimSpace(value) == "0":
			problems = append(problems, Problem{Cause: BridgeNetfilter, Message: "Policies are not enforced between pods on one bridge: set it to 1", Found: "net.bridge." + name + "=0"})
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
				problems = append(problems, Problem{Cause: PolicyEngine, Message: engine.name + " enforces network policies too, or has left rules behind: a connection needs both to allow it", Found: name})
			}
		}
	}
	return problems
}

const (
	// maxFlowtables bounds the reported flowtables, and maxDevices the devices named for each.
	maxFlowtables = 16
	maxDevices    = 8
)

// checkFlowtables finds flowtables. The agent removes blocked connections from them, but hardware
// continues to forward a connection until the kernel has removed it there.
func checkFlowtables(node Node) []Problem {
	flowtables, err := node.Flowtables()
	if err != nil {
		return []Problem{unknown("flowtables", err)}
	}
	var problems []Problem
	for _, f := range flowtables[:min(len(flowtables), maxFlowtables)] {
		message := "A flowtable forwards established connections past all rules; those that policies deny are taken out of it"
		if f.Hardware {
			message = "A flowtable lets hardware forward established connections past all rules; those that policies deny go on for up to two seconds"
		}
		problems = append(problems, Problem{Offload, message, "flowtable " + f.Name + " of table " + f.Table, joinFirst(f.Devices)})
	}
	return problems
}

// joinFirst returns the first names and the number of the rest.
func joinFirst(names []string) string {
	if more := len(names) - maxDevices; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxDevices], ", "), more)
	}
	return strings.Join(names, ", ")
}

func unknown(what string, err error) Problem {
	return Problem{Cause: Unknown, Message: "What else affects policies on this node is not known: " + what + " cannot be read", Found: err.Error()}
}
