// Package clusterstate keeps the compiled state of a cluster as its objects
// change, and takes snapshots of it. It owns which pod has an address, which
// policies select a pod, and what a change costs. It knows nothing of the fields of
// policies, which are package compile's, nor of where objects come from.
package clusterstate

import (
	"fmt"
	"iter"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// Config is the view that a Cluster has.
type Config struct {
	// NodeName is the node that enforces: its pods get chains.
	NodeName string
	// AllNodes compiles what all nodes enforce into one snapshot: every pod gets
	// chains and the pod ranges of every node count, NodeName means nothing. A
	// packet's verdict is then that of the source's node and the destination's
	// node together. It is for tools. Which packets are for the source's own node
	// is not known here: the caller sets it in policy.Query.
	AllNodes bool
	// Partial is set if the Cluster does not get all pods of other nodes, but those in the
	// sets of SetListed. Packets wait whose decision needs pods of no such set.
	Partial bool
	// AwaitNamespaces treats a pod whose Namespace is not known as a pod that is not known
	// itself. Otherwise policies do not select it by its namespace's labels.
	AwaitNamespaces bool

	Features compile.Features
	// Audit treats every policy as audited, whatever its annotation says.
	Audit bool
	// Memory is where evaluations are remembered. Nil makes one of the default
	// size.
	Memory *policy.Memory
}

// enforces reports whether the snapshot decides for pods of node.
func (c *Config) enforces(node string) bool { return c.AllNodes || node == c.NodeName }

// ownNode returns the node that the Cluster is the view of, empty if it is that of all.
func (c *Config) ownNode() string {
	if c.AllNodes {
		return ""
	}
	return c.NodeName
}

// Cluster is the compiled state of a cluster as one node sees it. It follows the
// cluster object by object. A change costs what it touches: a pod of another node
// its addresses, whatever the number of pods and policies; a policy the pods of
// this node that it selects. Clusters with the same objects give snapshots that
// decide alike, whatever the order of changes. A Cluster is for one goroutine; its
// snapshots are for all.
type Cluster struct {
	cfg        Config
	namespaces map[string]*namespace
	nodes      map[string]*compile.Node
	policies   []compiled // of kinds without namespaces, in the order of evaluation
	byName     map[policyKey]compiled
	addresses  addresses
	chains     chains

	local     map[podKey]bool // the pods of this node
	stale     map[podKey]bool // those whose chains may have to change
	localPods *policy.Local   // nil when one of them has changed
	interest  interest

	// unaddressed are the pods of other nodes without an address, and newcomers those
	// of them that the last snapshot had; nil when one has changed.
	unaddressed map[podKey]bool
	newcomers   []*policy.Endpoint

	conflicts   []Conflict // when the last snapshot was taken
	sandboxes   []Sandbox  // the newest first
	unannounced bool       // a pod of this node has changed since they were announced

	derived *derived // nil when a policy or a node has changed
	// podRanges and hosts are of all nodes, and own is the node that enforces. They are nil
	// until a policy needs them, and when a node has changed.
	podRanges *policy.PodRanges
	hosts     map[netip.Addr]*policy.Host
	own       *policy.Host
}

// New returns an empty Cluster.
func New(cfg Config) *Cluster {
	if cfg.Memory == nil {
		cfg.Memory = policy.NewMemory(policy.DefaultMemory)
	}
	return &Cluster{
		cfg:        cfg,
		namespaces: map[string]*namespace{},
		byName:     map[policyKey]compiled{},
		nodes:      map[string]*compile.Node{},
		addresses:  newAddresses(cfg.ownNode()),
		chains:     chains{built: map[string]*policy.Chain{}},
		local:      map[podKey]bool{},
		stale:      map[podKey]bool{},

		unaddressed: map[podKey]bool{},
	}
}

// Set adds an object or replaces the one of its name. It keeps o, which must not
// change any more, and reports whether verdicts can differ by it. o is a
// *compile.Pod, a *corev1.Namespace, a *corev1.Node or a policy of one of
// compile.Kinds; anything else is a programming error.
func (c *Cluster) Set(o any) bool {
	switch o := o.(type) {
	case *compile.Pod:
		return c.setPod(o)
	case *corev1.Namespace:
		return c.setNamespace(o)
	case *corev1.Node:
		return c.setNode(o)
	case compile.Object:
		if kind := compile.KindOf(o); kind != nil {
			return c.setPolicy(kind.Compile(o, c.cfg.Features))
		}
	}
	panic(fmt.Sprintf("object of an unknown kind: %T", o))
}

// SetFeatures replaces Config.Features for policies that are set from now on.
func (c *Cluster) SetFeatures(f compile.Features) { c.cfg.Features = f }

// Delete removes the object of that kind and name, and reports whether verdicts can
// differ by it. The namespace is empty for kinds that have none.
func (c *Cluster) Delete(kind *compile.Kind, namespace, name string) bool {
	switch mustKnow(kind) {
	case compile.KindPod:
		return c.deletePod(podKey{namespace, name})
	case compile.KindNamespace:
		return c.deleteNamespace(name)
	case compile.KindNode:
		return c.deleteNode(name)
	}
	return c.replacePolicy(policy.Ref{Kind: kind.Name, Namespace: namespace, Name: name}, kind, nil)
}

// Names yields the namespaces and names of the objects of a kind, in no order.
// Meanwhile the Cluster must not change.
func (c *Cluster) Names(kind *compile.Kind) iter.Seq2[string, string] {
	switch mustKnow(kind) {
	case compile.KindPod:
		return c.podNames
	case compile.KindNamespace:
		return c.namespaceNames
	case compile.KindNode:
		return c.nodeNames
	}
	return func(yield func(namespace, name string) bool) {
		for p := range c.allPolicies() {
			if p.Kind == kind && !yield(p.Ref.Namespace, p.Ref.Name) {
				return
			}
		}
	}
}

// Len returns the number of objects of a kind.
func (c *Cluster) Len(kind *compile.Kind) int {
	n := 0
	switch mustKnow(kind) {
	case compile.KindPod:
		for _, ns := range c.namespaces {
			n += len(ns.pods)
		}
	case compile.KindNode:
		n = len(c.nodes)
	default:
		for range c.Names(kind) {
			n++
		}
	}
	return n
}

// mustKnow returns kind. One that is in no table is a programming error.
func mustKnow(kind *compile.Kind) *compile.Kind {
	switch kind {
	case compile.KindPod, compile.KindNamespace, compile.KindNode:
		return kind
	}
	if !kind.IsPolicy() {
		panic(fmt.Sprintf("unknown kind %v", kind))
	}
	return kind
}

// Conflicts returns the addresses that statuses claim and that are another's, as the last
// snapshot has them.
func (c *Cluster) Conflicts() []Conflict { return c.conflicts }

// Snapshot returns the cluster as it is now.
func (c *Cluster) Snapshot() *policy.Snapshot {
	if c.unannounced {
		c.announce()
	}
	if c.addresses.settleAll(c.Pods(), c.podOf) {
		c.derived, c.podRanges, c.hosts = nil, nil, nil
	}
	c.updateChains()
	if c.derived == nil || c.addresses.occupancyChanged {
		c.derived = c.derive()
		c.addresses.occupancyChanged = false
	}
	endpoints := c.addresses.current()
	if c.addresses.settled {
		c.conflicts = c.addresses.conflicts(c.nodes, c.podAt)
	}
	if c.localPods == nil || c.addresses.settled {
		c.localPods, c.addresses.settled = policy.NewLocal(endpoints, c.localAddresses()), false
	}
	return policy.New(policy.Model{
		Endpoints: endpoints,
		Local:     c.localPods,
		Ranges:    c.addresses.addClosed(c.derived.ranges),
		Isolating: c.derived.isolating,
		ToHost:    c.derived.toHost,
		PodRanges: c.derived.podRanges,
		Newcomers: c.currentNewcomers(),
		Hosts:     c.derived.hosts,
		Own:       c.derived.own,
		Findings:  c.derived.findings,
		Memory:    c.cfg.Memory,
		Audit:     c.derived.audit,

		ForwardedSources: c.derived.forwarded,
	})
}
