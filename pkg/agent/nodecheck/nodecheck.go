// Package nodecheck finds what prevents a node from enforcing network policies, and other software
// that enforces them, too. It recognizes other software by the names it uses, and compares what
// the agent itself knows about the node. It changes nothing.
package nodecheck

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
	"sigs.k8s.io/kube-network-policies/pkg/base/runner"
)

// interval is the time between two checks. One at the start is not enough: for example, a new node
// has no bridge yet when its agent starts.
const interval = time.Minute

// Node reads the state of a node.
type Node interface {
	State() State
}

// Cause is the kind of a problem, and the label of the metric.
type Cause string

// The causes that messages explains.
const (
	BridgeNetfilter Cause = "bridge_netfilter"
	DataPlane       Cause = "data_plane"
	Offload         Cause = "flowtable"
	PolicyEngine    Cause = "policy_engine"
	Firewall        Cause = "firewall"
	Untracked       Cause = "untracked"
	Helper          Cause = "helper"
	OwnNode         Cause = "own_node"
	PodInterface    Cause = "pod_interface"
	PodRanges       Cause = "pod_ranges"
	Addresses       Cause = "addresses"
	Queue           Cause = "queue"
	Unknown         Cause = "unknown"
)

// messages are what the log says about each cause.
var messages = map[Cause]string{
	BridgeNetfilter: "Policies are not enforced between pods on one bridge: load the kernel module br_netfilter, and set its sysctls to 1",
	DataPlane:       "Policies are not enforced for packets that it sends on past netfilter",
	Offload:         "A flowtable forwards established connections past all rules; those that policies deny are taken out of it",
	PolicyEngine:    "Other software enforces network policies too, or has left rules behind: a connection needs both to allow it",
	Firewall:        "A chain of other software drops what none of its rules accepts: connections that policies allow need such a rule, too",
	Untracked:       "Rules of other software keep packets of pods from connection tracking (NOTRACK): replies to isolated pods are denied",
	Helper:          "The kernel reads protocols such as FTP to expect further connections: these need policies like all others",
	OwnNode:         "The pods of the agent's node name are not known to be those of this machine",
	PodInterface:    "No interface of this node leads to any of its pods: if they are connected past the node's network (macvlan, ipvlan, SR-IOV), policies are not enforced for them",
	PodRanges:       "No pod of this node has an address in the ranges of its Node: what a new pod sends and receives before its address is known passes",
	Addresses:       "Statuses of pods or nodes claim addresses that are another's, or may be",
	Queue:           "Packets that the table sends to the agent's queues do not reach them",
	Unknown:         "What else affects policies on this node is not known",
}

// Problem is something that an operator should know about the node. Found names what was found, or
// says why it could not be read.
type Problem struct {
	Cause Cause
	Found string
}

// Checker finds the problems of a node, and reports each when it is new.
type Checker struct {
	node  Node
	gauge *prometheus.GaugeVec
	// nodeProblems are the problems that the last look found.
	nodeProblems []Problem
	// untracked is the count of untracked packets at the last look that counted them, valid if counted is set.
	untracked uint64
	counted   bool
	read      func() module.Facts
	facts     comparison
	poked     chan struct{}

	mu     sync.Mutex
	health error
}

// Module returns the module that checks this node.
func Module() module.Module {
	return module.Module{Name: "nodecheck", New: func(core *module.Core) (module.Part, error) {
		c := New(Host{}, core.Facts, core.Registry)
		// Readiness does not depend on the names that are found on the node: they do not prove
		// that packets reach the agent.
		return module.Part{Begin: c.Begin, NodeChanged: c.Poke, Ready: c.Healthy, Loops: []func(context.Context) error{c.Run}}, nil
	}}
}

// New returns a Checker of a node and of the facts that read returns. The metric has a series for each cause.
func New(node Node, read func() module.Facts, reg prometheus.Registerer) *Checker {
	c := &Checker{node: node, read: read, poked: make(chan struct{}, 1), gauge: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "netpol_node_problems",
		Help: "What on this node may keep policies from being enforced, or enforces policies too, by cause.",
	}, []string{"cause"})}
	reg.MustRegister(c.gauge)
	return c
}

// Begin checks the node, and logs and exports its problems.
func (c *Checker) Begin(ctx context.Context) {
	c.look(ctx, c.read())
	c.export()
}

// Run checks the node and the facts every minute until ctx ends.
func (c *Checker) Run(ctx context.Context) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.poked:
			c.report(ctx, c.facts.checkOwnNodeAgain(c.read()))
		case <-ticker.C:
			facts := c.read()
			c.look(ctx, facts)
			c.report(ctx, c.facts.check(facts))
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

// look checks the node, and logs new problems.
func (c *Checker) look(ctx context.Context, now module.Facts) {
	found := c.node.State().Problems
	if now.Counted {
		if c.counted && now.Untracked > c.untracked {
			found = append(found, Problem{Untracked, "netpol_untracked_packets_total grows"})
		}
		c.counted, c.untracked = true, now.Untracked
	}
	log(ctx, newProblems(found, c.nodeProblems))
	c.nodeProblems = found
}

// report logs new problems among those found in facts.
func (c *Checker) report(ctx context.Context, found []Problem) {
	log(ctx, newProblems(found, c.facts.problems))
	c.facts.problems = found
	c.mu.Lock()
	defer c.mu.Unlock()
	c.health = nil
	for _, p := range found {
		if p.Cause == Queue {
			c.health = errors.New(messages[Queue] + ": " + p.Found)
		}
	}
}

// newProblems returns the problems that are not in known.
func newProblems(problems, known []Problem) []Problem {
	return slices.DeleteFunc(slices.Clone(problems), func(p Problem) bool { return slices.Contains(known, p) })
}

func (c *Checker) export() {
	for cause := range messages {
		n := 0
		for _, p := range slices.Concat(c.nodeProblems, c.facts.problems) {
			if p.Cause == cause {
				n++
			}
		}
		c.gauge.WithLabelValues(string(cause)).Set(float64(n))
	}
}

func log(ctx context.Context, problems []Problem) {
	for _, p := range problems {
		klog.FromContext(ctx).Error(nil, messages[p.Cause], "cause", p.Cause, "found", p.Found)
	}
}
