package clusterstate

import (
	"iter"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// namespace holds the contents of a namespace, whether or not its object is known.
type namespace struct {
	labels   policy.Labels // zero while the object is not known
	pods     map[string]*compile.Pod
	policies []compiled // in evaluation order
	// enforcement is what the object's annotation says about its policies; findings are the faults
	// of the annotations.
	enforcement compile.Enforcement
	findings    []policy.Finding
	// denial is what becomes of packets that policies of its pods deny.
	denial compile.Denial
	// forwards are the sources of packets that its pods may forward according to its annotation.
	forwards []netip.Prefix
}

type podKey struct{ namespace, name string }

func keyOf(p *compile.Pod) podKey { return podKey{p.Endpoint.Namespace, p.Endpoint.Name} }

func (c *Cluster) namespace(name string) *namespace {
	ns := c.namespaces[name]
	if ns == nil {
		ns = &namespace{pods: map[string]*compile.Pod{}, denial: c.cfg.Denial}
		c.namespaces[name] = ns
	}
	return ns
}

// forget drops an empty namespace.
func (c *Cluster) forget(name string, ns *namespace) {
	if !ns.labels.Known() && len(ns.pods) == 0 && len(ns.policies) == 0 {
		delete(c.namespaces, name)
	}
}

func (c *Cluster) setNamespace(o *corev1.Namespace) bool {
	labeled := c.label(o.Name, policy.NewLabels(o.Labels))
	enforcement, _ := compile.EnforcementOf(o)
	enforced := c.enforce(o.Name, enforcement, compile.DiagnoseNamespace(o))
	sources, _ := compile.ForwardedSources(o)
	forwarded := c.forward(o.Name, sources)
	denial, _ := compile.DenialOf(o, c.cfg.Denial)
	return c.deny(o.Name, denial) || forwarded || enforced || labeled
}

func (c *Cluster) deleteNamespace(name string) bool {
	forwarded := c.forward(name, nil)
	enforced := c.enforce(name, compile.Unspecified, nil)
	denied := c.deny(name, c.cfg.Denial)
	return c.label(name, policy.Labels{}) || enforced || forwarded || denied
}

// label sets the labels of a namespace, zero if its object is gone.
func (c *Cluster) label(name string, l policy.Labels) bool {
	ns := c.namespace(name)
	defer c.forget(name, ns)
	if ns.labels.Equal(l) {
		return false
	}
	ns.labels = l
	for _, old := range ns.pods {
		now := *old
		now.Endpoint.NamespaceLabels, now.Endpoint.Version = l, policy.NewVersion()
		c.replacePod(old, &now)
		if key := keyOf(&now); c.local[key] {
			c.stale[key] = true
		}
	}
	return true
}

func (c *Cluster) namespaceNames(yield func(namespace, name string) bool) {
	for name, ns := range c.namespaces {
		if ns.labels.Known() && !yield("", name) {
			return
		}
	}
}

func (c *Cluster) setPod(p *compile.Pod) bool {
	ns := c.namespace(p.Endpoint.Namespace)
	old := ns.pods[p.Endpoint.Name]
	if old != nil && old.Equal(p) {
		return false
	}
	p.Endpoint.NamespaceLabels, p.Endpoint.Version = ns.labels, policy.NewVersion()
	p.Endpoint.Rejects = ns.denial == compile.Reject
	p.Announced = c.reportedAddresses(p)
	key := keyOf(p)
	mattered := c.matters(key, old)
	c.replacePod(old, p)
	if !c.cfg.enforces(p.Node) {
		c.forgetLocal(key)
		return (mattered || c.matters(key, p)) && !c.onlyTerminates(old, p)
	}
	c.local[key], c.stale[key], c.localPods = true, true, nil
	c.unannounced = len(c.sandboxes) > 0
	return true
}

// matters reports whether verdicts can depend on a pod, which may be nil: a pod of this node, a pod
// with an address, or one that will get an address on another node soon.
func (c *Cluster) matters(key podKey, p *compile.Pod) bool {
	return p != nil && (c.local[key] || c.newcomers[key] || len(c.addresses.claims(p)) > 0)
}

// onlyTerminates reports whether termination is the only difference from old, which may be nil, and
// no other pod claims the pod's addresses: then verdicts stay the same.
func (c *Cluster) onlyTerminates(old, p *compile.Pod) bool {
	if old == nil || old.Terminating == p.Terminating {
		return false
	}
	before := *old
	before.Terminating = p.Terminating
	return before.Equal(p) && !slices.ContainsFunc(p.Claims(), func(a netip.Addr) bool { return c.addresses.contested[a] != nil })
}

func (c *Cluster) deletePod(key podKey) bool {
	ns := c.namespace(key.namespace)
	defer c.forget(key.namespace, ns)
	old := ns.pods[key.name]
	if old == nil {
		return false
	}
	mattered := c.matters(key, old)
	c.addresses.replace(old, nil, c.podOf)
	c.countPods(old.Node, -1)
	delete(ns.pods, key.name)
	c.followNewcomer(key, nil)
	c.forgetLocal(key)
	return mattered
}

// replacePod replaces old, which may be nil, with now, which has the same name.
func (c *Cluster) replacePod(old, now *compile.Pod) {
	c.addresses.replace(old, now, c.podOf)
	if old != nil {
		c.countPods(old.Node, -1)
	}
	c.countPods(now.Node, 1)
	c.namespace(now.Endpoint.Namespace).pods[now.Endpoint.Name] = now
	c.followNewcomer(keyOf(now), now)
}

// countPods counts n more pods of a node.
func (c *Cluster) countPods(node string, n int) {
	c.podsOn[node] += n
	if c.podsOn[node] == 0 {
		delete(c.podsOn, node)
	}
}

// HasNode reports whether a node is known: by its object, or by a pod that runs there.
func (c *Cluster) HasNode(name string) bool {
	return c.nodes[name] != nil || name != "" && c.podsOn[name] > 0
}

// forgetLocal removes a pod from those of this node, if it is one.
func (c *Cluster) forgetLocal(key podKey) {
	if c.local[key] {
		c.localPods, c.unannounced = nil, len(c.sandboxes) > 0
	}
	delete(c.local, key)
	delete(c.stale, key)
}

// pod returns the pod with that name, which must be known.
func (c *Cluster) pod(key podKey) *compile.Pod { return c.namespaces[key.namespace].pods[key.name] }

// podOf returns the pod that e belongs to.
func (c *Cluster) podOf(e *policy.Endpoint) *compile.Pod {
	return c.pod(podKey{e.Namespace, e.Name})
}

// podAt returns the pod with that address, nil if there is none or it is not certain.
func (c *Cluster) podAt(addr netip.Addr) *compile.Pod {
	if e := c.addresses.at(addr); e != nil && e.Dispute == nil {
		return c.podOf(e)
	}
	return nil
}

// Pods yields all pods, in no order. The Cluster must not change during the iteration.
func (c *Cluster) Pods() iter.Seq[*compile.Pod] {
	return func(yield func(*compile.Pod) bool) {
		for _, ns := range c.namespaces {
			for _, p := range ns.pods {
				if !yield(p) {
					return
				}
			}
		}
	}
}

// allLocal yields the pods of this node.
func (c *Cluster) allLocal() iter.Seq[*compile.Pod] {
	return func(yield func(*compile.Pod) bool) {
		for key := range c.local {
			if !yield(c.pod(key)) {
				return
			}
		}
	}
}

func (c *Cluster) localAddresses() []netip.Addr {
	var addrs []netip.Addr
	for p := range c.allLocal() {
		for _, addr := range p.Claims() {
			if c.addresses.owns(p, addr) {
				addrs = append(addrs, addr)
			}
		}
	}
	return addrs
}

func (c *Cluster) podNames(yield func(namespace, name string) bool) {
	for nsName, ns := range c.namespaces {
		for name := range ns.pods {
			if !yield(nsName, name) {
				return
			}
		}
	}
}
