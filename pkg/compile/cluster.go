package compile

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// Kind is a kind of object that a Cluster is made of.
type Kind string

// The kinds.
const (
	KindPod                        Kind = "Pod"
	KindNamespace                  Kind = "Namespace"
	KindNode                       Kind = "Node"
	KindNetworkPolicy              Kind = "NetworkPolicy"
	KindAdminNetworkPolicy         Kind = "AdminNetworkPolicy"
	KindBaselineAdminNetworkPolicy Kind = "BaselineAdminNetworkPolicy"
	KindClusterNetworkPolicy       Kind = "ClusterNetworkPolicy"
)

// Config says whose view a Cluster is.
type Config struct {
	// NodeName is the node that judges: its pods get chains.
	NodeName string
	// AllNodes compiles what all nodes judge into one snapshot: every pod gets
	// chains and the pod ranges of every node count, NodeName means nothing. A
	// packet's verdict is then that of the source's node and the destination's
	// node together. It is for tools. Which packets are for the source's own node
	// is not known here: who asks says so (policy.Query).
	AllNodes bool
	Features Features
	// Memory is where evaluations are remembered. Nil makes one of the default
	// size.
	Memory *policy.Memory
}

// judges tells whether what happens on node is judged by the snapshot.
func (c *Config) judges(node string) bool { return c.AllNodes || node == c.NodeName }

// Cluster is what a node knows of its cluster, compiled, and follows it object
// by object. A change costs what it touches: a pod of another node its
// addresses, whatever the number of pods and policies; a policy the pods of this
// node that it selects. A Cluster that was told the same objects, in whatever
// order, gives snapshots that judge alike. It is for one goroutine; its
// snapshots are for all.
type Cluster struct {
	cfg        Config
	namespaces map[string]*namespace
	nodes      map[string]*corev1.Node
	admin      []*adminPolicy // in the order in which they are asked
	addresses  addresses
	chains     chains

	local  map[podKey]bool // the pods of this node
	stale  map[podKey]bool // those whose chains may have to change
	judged *policy.Local   // nil when one of them has changed

	derived *derived // nil when a policy or a node has changed
	// podRanges and hosts are of all nodes, nil until a policy asks, and when a node
	// has changed.
	podRanges *policy.PodRanges
	hosts     map[netip.Addr]*policy.Host
}

// namespace holds what is in a namespace, whether its object is known or not.
type namespace struct {
	labels   labels.Set // nil while the object is not known
	pods     map[string]*Pod
	policies []*networkPolicy // by name
}

type podKey struct{ namespace, name string }

func (p *Pod) key() podKey { return podKey{p.Endpoint.Namespace, p.Endpoint.Name} }

// derived is what follows from all policies and nodes, apart from the chains.
type derived struct {
	ranges    []netip.Prefix
	isolating [2]bool
	podRanges *policy.PodRanges
	hosts     map[netip.Addr]*policy.Host
	findings  []policy.Finding
}

// NewCluster returns an empty Cluster.
func NewCluster(cfg Config) *Cluster {
	if cfg.Memory == nil {
		cfg.Memory = policy.NewMemory(policy.DefaultMemory)
	}
	return &Cluster{
		cfg:        cfg,
		namespaces: map[string]*namespace{},
		nodes:      map[string]*corev1.Node{},
		addresses:  addresses{contested: map[netip.Addr][]*Pod{}},
		chains:     chains{built: map[string]*policy.Chain{}},
		local:      map[podKey]bool{},
		stale:      map[podKey]bool{},
	}
}

// Set takes an object in the place of the one of its name. It keeps o, which
// must not change any more, and reports whether verdicts can differ by it. The
// kinds are *Pod, *corev1.Namespace, *corev1.Node and the policies; any other is
// a fault of the program.
func (c *Cluster) Set(o any) bool {
	switch o := o.(type) {
	case *Pod:
		return c.setPod(o)
	case *corev1.Namespace:
		return c.setNamespace(o)
	case *corev1.Node:
		return c.setNode(o)
	case *networkingv1.NetworkPolicy:
		return c.setNetworkPolicy(o)
	case *v1alpha1.AdminNetworkPolicy, *v1alpha1.BaselineAdminNetworkPolicy, *v1alpha2.ClusterNetworkPolicy:
		return c.setAdminPolicy(o)
	}
	panic(fmt.Sprintf("no kind of a cluster: %T", o))
}

// Delete forgets the object of that kind and name, and reports whether there was
// one. The namespace is empty for kinds that have none.
func (c *Cluster) Delete(kind Kind, namespace, name string) bool {
	switch kind {
	case KindPod:
		return c.deletePod(podKey{namespace, name})
	case KindNamespace:
		return c.label(name, nil)
	case KindNode:
		return c.deleteNode(name)
	case KindNetworkPolicy:
		return c.replaceNetworkPolicy(namespace, name, nil)
	}
	return c.replaceAdminPolicy(policy.Ref{Kind: string(kind), Name: name}, nil)
}

// Names yields the namespaces and names of the objects of a kind, in no order.
// Meanwhile the Cluster must not change.
func (c *Cluster) Names(kind Kind) iter.Seq2[string, string] {
	return func(yield func(namespace, name string) bool) {
		switch kind {
		case KindNode:
			for name := range c.nodes {
				if !yield("", name) {
					return
				}
			}
		case KindPod, KindNamespace, KindNetworkPolicy:
			for name, ns := range c.namespaces {
				if !ns.names(kind, name, yield) {
					return
				}
			}
		default:
			for _, p := range c.admin {
				if p.ref.Kind == string(kind) && !yield("", p.ref.Name) {
					return
				}
			}
		}
	}
}

func (ns *namespace) names(kind Kind, nsName string, yield func(namespace, name string) bool) bool {
	switch kind {
	case KindPod:
		for name := range ns.pods {
			if !yield(nsName, name) {
				return false
			}
		}
	case KindNetworkPolicy:
		for _, p := range ns.policies {
			if !yield(nsName, p.ref.Name) {
				return false
			}
		}
	default:
		return ns.labels == nil || yield("", nsName)
	}
	return true
}

// Len returns the number of objects of a kind.
func (c *Cluster) Len(kind Kind) int {
	n := 0
	switch kind {
	case KindNode:
		return len(c.nodes)
	case KindPod:
		for _, ns := range c.namespaces {
			n += len(ns.pods)
		}
	case KindNetworkPolicy:
		for _, ns := range c.namespaces {
			n += len(ns.policies)
		}
	default:
		for range c.Names(kind) {
			n++
		}
	}
	return n
}

// Snapshot returns the cluster as it is now.
func (c *Cluster) Snapshot() *policy.Snapshot {
	c.reselect()
	if c.derived == nil {
		c.derived = c.derive()
	}
	endpoints := c.addresses.current()
	if c.judged == nil || c.addresses.settled {
		c.judged, c.addresses.settled = policy.NewLocal(endpoints, c.localAddresses()), false
	}
	return policy.New(policy.Model{
		Endpoints: endpoints,
		Local:     c.judged,
		Ranges:    c.derived.ranges,
		Isolating: c.derived.isolating,
		PodRanges: c.derived.podRanges,
		Hosts:     c.derived.hosts,
		Findings:  c.derived.findings,
		Memory:    c.cfg.Memory,
	})
}

func (c *Cluster) namespace(name string) *namespace {
	ns := c.namespaces[name]
	if ns == nil {
		ns = &namespace{pods: map[string]*Pod{}}
		c.namespaces[name] = ns
	}
	return ns
}

// pod returns the pod that e is of.
func (c *Cluster) pod(e *policy.Endpoint) *Pod { return c.namespaces[e.Namespace].pods[e.Name] }

func (c *Cluster) setPod(p *Pod) bool {
	ns := c.namespace(p.Endpoint.Namespace)
	old := ns.pods[p.Endpoint.Name]
	if old != nil && old.equal(p) {
		return false
	}
	p.Endpoint.NamespaceLabels, p.Endpoint.Version = ns.labels, policy.NewVersion()
	c.replacePod(old, p)
	key := p.key()
	if !c.cfg.judges(p.Node) {
		c.forgetLocal(key)
		return true
	}
	c.local[key], c.stale[key], c.judged = true, true, nil
	return true
}

// forgetLocal is told that a pod is none of this node's.
func (c *Cluster) forgetLocal(key podKey) {
	if c.local[key] {
		c.judged = nil
	}
	delete(c.local, key)
	delete(c.stale, key)
}

func (c *Cluster) deletePod(key podKey) bool {
	ns := c.namespace(key.namespace)
	defer c.forget(key.namespace, ns)
	old := ns.pods[key.name]
	if old == nil {
		return false
	}
	c.addresses.replace(old, nil, c.pod)
	delete(ns.pods, key.name)
	c.forgetLocal(key)
	return true
}

// replacePod puts now, of the same name, in the place of old, which may be nil.
func (c *Cluster) replacePod(old, now *Pod) {
	c.addresses.replace(old, now, c.pod)
	c.namespace(now.Endpoint.Namespace).pods[now.Endpoint.Name] = now
}

// forget drops a namespace that holds nothing.
func (c *Cluster) forget(name string, ns *namespace) {
	if ns.labels == nil && len(ns.pods) == 0 && len(ns.policies) == 0 {
		delete(c.namespaces, name)
	}
}

func (c *Cluster) setNamespace(o *corev1.Namespace) bool {
	l := labels.Set(o.Labels)
	if l == nil {
		l = labels.Set{} // known, and without labels
	}
	return c.label(o.Name, l)
}

// label gives a namespace labels, nil ones when its object is gone.
func (c *Cluster) label(name string, l labels.Set) bool {
	ns := c.namespace(name)
	defer c.forget(name, ns)
	if (ns.labels == nil) == (l == nil) && labels.Equals(ns.labels, l) {
		return false
	}
	ns.labels = l
	for _, old := range ns.pods {
		now := *old
		now.Endpoint.NamespaceLabels, now.Endpoint.Version = l, policy.NewVersion()
		c.replacePod(old, &now)
		if key := now.key(); c.local[key] {
			c.stale[key] = true
		}
	}
	return true
}

// setNode keeps what concerns policy: of every node the ranges of pod addresses,
// its labels and its own addresses.
func (c *Cluster) setNode(o *corev1.Node) bool {
	old := c.nodes[o.Name]
	c.nodes[o.Name] = o
	if old != nil && reflect.DeepEqual(nodeFacts(old), nodeFacts(o)) {
		return false
	}
	c.forgetNodes()
	return true
}

// forgetNodes is told that a node has changed.
func (c *Cluster) forgetNodes() { c.derived, c.podRanges, c.hosts = nil, nil, nil }

func (c *Cluster) deleteNode(name string) bool {
	if c.nodes[name] == nil {
		return false
	}
	delete(c.nodes, name)
	c.forgetNodes()
	return true
}

func (c *Cluster) setNetworkPolicy(o *networkingv1.NetworkPolicy) bool {
	now := compileNetworkPolicy(o, c.cfg.Features)
	return c.replaceNetworkPolicy(o.Namespace, o.Name, now)
}

// replaceNetworkPolicy puts now, nil for none, in the place of the policy of
// that name.
func (c *Cluster) replaceNetworkPolicy(nsName, name string, now *networkPolicy) bool {
	ns := c.namespace(nsName)
	defer c.forget(nsName, ns)
	at, found := slices.BinarySearchFunc(ns.policies, name, func(p *networkPolicy, name string) int { return cmp.Compare(p.ref.Name, name) })
	var old *networkPolicy
	if !found && now == nil {
		return false
	}
	if found {
		old = ns.policies[at]
		if now != nil && now.same(old) {
			return false
		}
		ns.policies = slices.Delete(ns.policies, at, at+1)
	}
	if now != nil {
		now.id = c.chains.newID()
		ns.policies = slices.Insert(ns.policies, at, now)
	}
	c.touch(nsName, ns, old)
	c.touch(nsName, ns, now)
	c.derived = nil
	return true
}

// touch makes the local pods stale that p selects.
func (c *Cluster) touch(nsName string, ns *namespace, p *networkPolicy) {
	if p == nil {
		return
	}
	for key := range c.local {
		if key.namespace == nsName && p.subject.Matches(ns.pods[key.name].Endpoint.Labels) {
			c.stale[key] = true
		}
	}
}

func (c *Cluster) setAdminPolicy(o any) bool {
	now := compileAdminPolicy(o, c.cfg.Features)
	return c.replaceAdminPolicy(now.ref, now)
}

// replaceAdminPolicy puts now, nil for none, in the place of the policy of that
// kind and name.
func (c *Cluster) replaceAdminPolicy(ref policy.Ref, now *adminPolicy) bool {
	at := slices.IndexFunc(c.admin, func(p *adminPolicy) bool { return p.ref.Kind == ref.Kind && p.ref.Name == ref.Name })
	if at >= 0 {
		if now != nil && now.same(c.admin[at]) {
			return false
		}
		c.admin = slices.Delete(c.admin, at, at+1)
	} else if now == nil {
		return false
	}
	if now != nil {
		now.id = c.chains.newID()
		at, _ := slices.BinarySearchFunc(c.admin, now, (*adminPolicy).compare)
		c.admin = slices.Insert(c.admin, at, now)
	}
	for key := range c.local {
		c.stale[key] = true
	}
	c.derived = nil
	return true
}

// reselect gives stale pods the chains of the policies that select them now.
func (c *Cluster) reselect() {
	for key := range c.stale {
		ns := c.namespaces[key.namespace]
		old := ns.pods[key.name]
		in := c.chains.of(c.admin, ns.policies, &old.Endpoint, policy.Ingress)
		out := c.chains.of(c.admin, ns.policies, &old.Endpoint, policy.Egress)
		if in == old.Endpoint.Ingress && out == old.Endpoint.Egress {
			continue
		}
		now := *old
		now.Endpoint.Ingress, now.Endpoint.Egress, c.judged = in, out, nil
		c.replacePod(old, &now)
	}
	if len(c.stale) > 0 {
		c.chains.keep(c.localPods())
		clear(c.stale)
	}
}

// localPods yields the pods of this node.
func (c *Cluster) localPods() func(yield func(*Pod) bool) {
	return func(yield func(*Pod) bool) {
		for key := range c.local {
			if !yield(c.namespaces[key.namespace].pods[key.name]) {
				return
			}
		}
	}
}

func (c *Cluster) localAddresses() []netip.Addr {
	var addrs []netip.Addr
	for p := range c.localPods() {
		for _, addr := range p.Addrs {
			if c.addresses.owns(p, addr) {
				addrs = append(addrs, addr)
			}
		}
	}
	return addrs
}

func (c *Cluster) derive() *derived {
	d := &derived{ranges: c.rangesOf(c.cfg.judges)}
	for _, ns := range c.namespaces {
		for _, p := range ns.policies {
			d.findings = append(d.findings, p.findings...)
			d.isolating[policy.Ingress] = d.isolating[policy.Ingress] || p.ingress.isolates
			d.isolating[policy.Egress] = d.isolating[policy.Egress] || p.egress.isolates
		}
	}
	for _, p := range c.admin {
		d.findings = append(d.findings, p.findings...)
		in, out := p.denies(policy.Ingress), p.denies(policy.Egress)
		d.isolating[policy.Ingress] = d.isolating[policy.Ingress] || in
		// The receiver's node cannot tell a new pod of this node from the node
		// itself, so that nothing may leave before the pod is known (CN-35).
		d.isolating[policy.Egress] = d.isolating[policy.Egress] || out || in
	}
	slices.SortStableFunc(d.findings, compareFindings)
	if slices.ContainsFunc(c.admin, (*adminPolicy).stopsPods) {
		d.podRanges = c.allPodRanges()
	}
	if slices.ContainsFunc(c.admin, (*adminPolicy).namesNodes) {
		d.hosts = c.allHosts()
	}
	return d
}

// compareFindings orders findings by policy. Those of one policy are in order
// already.
func compareFindings(a, b policy.Finding) int {
	return cmp.Or(
		cmp.Compare(a.Policy.Kind, b.Policy.Kind),
		cmp.Compare(a.Policy.Namespace, b.Policy.Namespace),
		cmp.Compare(a.Policy.Name, b.Policy.Name),
	)
}
