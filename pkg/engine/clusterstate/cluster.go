// Package clusterstate keeps the compiled state of a cluster up to date as its objects change, and
// takes snapshots of it. It owns which pod has an address, which policies select a pod, and the
// cost of a change. It does not know the fields of policies, which package compile owns, or where
// objects come from.
package clusterstate

import (
	"fmt"
	"iter"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

// Config selects a Cluster's view.
type Config struct {
	// NodeName is the node that enforces: its pods get chains.
	NodeName string
	// AllNodes compiles what all nodes enforce into one snapshot: every pod gets chains, the pod
	// ranges of every node count, and NodeName is ignored. A decision then combines those of the
	// source's node and the destination's node. It is for tools. The caller sets
	// policy.Query.ToHost for packets to the source's own node.
	AllNodes bool
	// AwaitNamespaces treats a pod as unknown while its Namespace is not known. Otherwise policies
	// do not select such a pod by its namespace's labels.
	AwaitNamespaces bool
	// LeadsElsewhere reports whether the routes of the node show that no pod of it has an address. Rerouted
	// says that the answers may have changed. Nil knows no routes.
	LeadsElsewhere func(netip.Addr) bool

	Features compile.Features
	// Audit treats every policy as audited, whatever its annotation says.
	Audit bool
	// Denial is what becomes of denied packets of pods whose namespace has no annotation about it.
	Denial compile.Denial
	// Deferred is that of policy.Model.
	Deferred chan<- *policy.Evaluation
}

// enforces reports whether the snapshot decides for pods of node.
func (c *Config) enforces(node string) bool { return c.AllNodes || node == c.NodeName }

// ownNode returns the enforcing node, empty with AllNodes.
func (c *Config) ownNode() string {
	if c.AllNodes {
		return ""
	}
	return c.NodeName
}

// Cluster is the compiled state of a cluster as one node sees it. It follows the cluster object by
// object. The cost of a change is proportional to what it touches: for a pod of another node its
// addresses, for a policy the pods of this node that it selects. Clusters with the same objects
// give snapshots that decide the same, whatever the order of changes. A Cluster is for one
// goroutine; its snapshots may be used by any.
type Cluster struct {
	cfg        Config
	namespaces map[string]*namespace
	nodes      map[string]*compile.Node
	groups     compile.CIDRGroups
	policies   []compiled // cluster-scoped policies in evaluation order
	byName     map[policyKey]compiled
	addresses  addresses
	chains     chains

	local     map[podKey]bool // the pods of this node
	stale     map[podKey]bool // pods whose chains may have to change
	localPods *policy.Local   // nil after one of them has changed

	newcomers map[podKey]bool // pods of other nodes without an address
	podsOn    map[string]int  // the number of pods, by node

	groupsChanged bool // since policies that refer to groups were compiled

	conflicts   []Conflict                    // as of the last snapshot
	sandboxes   []Sandbox                     // newest first
	misordered  []string                      // see Misordered
	unannounced bool                          // a pod of this node has changed since the last announce
	reports     map[string]map[podKey]Sandbox // by other nodes, whose agents report them

	derived *derived // nil after a policy or a node has changed
	// podRanges and hosts cover all nodes; own is the enforcing node. They are nil until a policy
	// needs them, and after a node has changed.
	podRanges *policy.PodRanges
	hosts     map[netip.Addr]*policy.Host
	hosted    map[netip.Addr][]string // the names of the nodes in hosts
	own       *policy.Host
}

// New returns an empty Cluster.
func New(cfg Config) *Cluster {
	return &Cluster{
		cfg:        cfg,
		namespaces: map[string]*namespace{},
		byName:     map[policyKey]compiled{},
		nodes:      map[string]*compile.Node{},
		groups:     compile.CIDRGroups{},
		addresses:  newAddresses(cfg),
		chains:     chains{built: map[string]*policy.Chain{}},
		local:      map[podKey]bool{},
		stale:      map[podKey]bool{},
		newcomers:  map[podKey]bool{},
		podsOn:     map[string]int{},
		reports:    map[string]map[podKey]Sandbox{},
	}
}

// Set adds an object or replaces the one with its name. It keeps o, which must not change any more,
// and reports whether verdicts may change. o is a *compile.Pod, a *corev1.Namespace, a *corev1.Node,
// a *proposed.CIDRGroup or a policy of one of compile.Kinds; anything else is a programming error and
// panics.
func (c *Cluster) Set(o any) bool {
	switch o := o.(type) {
	case *compile.Pod:
		return c.setPod(o)
	case *corev1.Namespace:
		return c.setNamespace(o)
	case *corev1.Node:
		return c.setNode(o)
	case *proposed.CIDRGroup:
		return c.setGroup(o)
	case compile.Object:
		if kind := compile.KindOf(o); kind != nil {
			return c.setPolicy(kind.Compile(o, c.cfg.Features, c.groups))
		}
	}
	panic(fmt.Sprintf("object of an unknown kind: %T", o))
}

// SetFeatures replaces Config.Features for policies that are set afterwards.
func (c *Cluster) SetFeatures(f compile.Features) { c.cfg.Features = f }

// Delete removes an object and reports whether verdicts may change. The namespace is empty for
// cluster-scoped kinds.
func (c *Cluster) Delete(kind *compile.Kind, namespace, name string) bool {
	switch mustKnow(kind) {
	case compile.KindPod:
		return c.deletePod(podKey{namespace, name})
	case compile.KindNamespace:
		return c.deleteNamespace(name)
	case compile.KindNode:
		return c.deleteNode(name)
	case compile.KindCIDRGroup:
		return c.deleteGroup(name)
	}
	return c.replacePolicy(policy.Ref{Kind: kind.Name, Namespace: namespace, Name: name}, kind, nil)
}

// Names yields the namespaces and names of the objects of a kind, in no order. The Cluster must not
// change during the iteration.
func (c *Cluster) Names(kind *compile.Kind) iter.Seq2[string, string] {
	switch mustKnow(kind) {
	case compile.KindPod:
		return c.podNames
	case compile.KindNamespace:
		return c.namespaceNames
	case compile.KindNode:
		return c.nodeNames
	case compile.KindCIDRGroup:
		return c.groupNames
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

// mustKnow returns kind. It panics for a kind that is in no table, a programming error.
func mustKnow(kind *compile.Kind) *compile.Kind {
	switch kind {
	case compile.KindPod, compile.KindNamespace, compile.KindNode, compile.KindCIDRGroup:
		return kind
	}
	if !kind.IsPolicy() {
		panic(fmt.Sprintf("unknown kind %v", kind))
	}
	return kind
}

// Conflicts returns the addresses in statuses that belong to another pod or node, as of the last
// snapshot.
func (c *Cluster) Conflicts() []Conflict { return c.conflicts }

// Snapshot returns the cluster as it is now.
func (c *Cluster) Snapshot() *policy.Snapshot {
	if c.groupsChanged {
		c.applyGroups()
	}
	if c.unannounced {
		c.announce()
	}
	if c.addresses.assignAll(c.podOf) {
		c.derived, c.podRanges, c.hosts = nil, nil, nil
	}
	c.checkHosts()
	c.updateChains()
	if c.derived == nil || c.addresses.occupancyChanged {
		c.derived = c.derive()
		c.addresses.occupancyChanged = false
	}
	endpoints := c.addresses.current()
	if c.addresses.reassigned {
		c.conflicts = c.addresses.conflicts(c.nodes, c.podAt)
	}
	if c.localPods == nil || c.addresses.reassigned {
		c.localPods, c.addresses.reassigned = policy.NewLocal(endpoints, c.localAddresses()), false
	}
	return policy.New(policy.Model{
		Endpoints: endpoints,
		Local:     c.localPods,
		Unknown:   c.unknown(),
		Hosts:     c.derived.hosts,
		Own:       c.derived.own,
		Findings:  c.derived.findings,
		Deferred:  c.cfg.Deferred,
		Audit:     c.derived.audit,

		ForwardedSources: c.derived.forwarded,
	})
}
