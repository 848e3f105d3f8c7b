package clusterstate

import (
	"iter"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// namespace holds what is in a namespace, whether its object is known or not.
type namespace struct {
	labels   policy.Labels // the zero ones while the object is not known
	pods     map[string]*compile.Pod
	policies []compiled // in the order of evaluation
	// enforcement is what the object's annotation says of them, and findings what is
	// wrong with it.
	enforcement compile.Enforcement
	findings    []policy.Finding
	// forwards are the sources of packets that its pods may forward, by its annotation.
	forwards []netip.Prefix
}

type podKey struct{ namespace, name string }

func keyOf(p *compile.Pod) podKey { return podKey{p.Endpoint.Namespace, p.Endpoint.Name} }

func (c *Cluster) namespace(name string) *namespace {
	ns := c.namespaces[name]
	if ns == nil {
		ns = &namespace{pods: map[string]*compile.Pod{}}
		c.namespaces[name] = ns
	}
	return ns
}

// forget drops a namespace that holds nothing.
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
	return c.forward(o.Name, sources) || enforced || labeled
}

func (c *Cluster) deleteNamespace(name string) bool {
	forwarded := c.forward(name, nil)
	enforced := c.enforce(name, compile.Unspecified, nil)
	return c.label(name, policy.Labels{}) || enforced || forwarded
}

// label gives a namespace labels, the zero ones when its object is gone.
func (c *Cluster) label(name string, l policy.Labels) bool {
	ns := c.namespace(name)
	defer c.forget(name, ns)
	if ns.labels.Equal(l) {
		return false
	}
	ns.labels = l
	c.needsChanged()
	for _, old := range ns.pods {
		now := *old
		now.Endpoint.NamespaceLabels, now.Endpoint.Version = l, policy.NewVersion()
		now.Withheld = c.withholds(ns)
		c.replacePod(old, &now)
		if key := keyOf(&now); c.local[key] {
			c.stale[key] = true
			if now.Withheld != old.Withheld {
				c.localPods = nil
			}
		}
	}
	return true
}

// withholds reports whether no address may count as that of a pod of a namespace.
func (c *Cluster) withholds(ns *namespace) bool { return c.cfg.AwaitNamespaces && !ns.labels.Known() }

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
	if old != nil && old.Equal(p) && !old.Endpoint.Doubtful {
		return false
	}
	p.Endpoint.NamespaceLabels, p.Endpoint.Version = ns.labels, policy.NewVersion()
	p.Withheld = c.withholds(ns)
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

// matters reports whether verdicts can depend on a pod, which may be nil: one of this node, one
// with an address, or one that another node gives an address soon.
func (c *Cluster) matters(key podKey, p *compile.Pod) bool {
	return p != nil && (c.local[key] || c.unaddressed[key] || len(c.addresses.claims(p)) > 0)
}

// onlyTerminates reports whether all that a pod differs in from old, which may be nil, is that
// it terminates, and no other pod claims an address of it.
func (c *Cluster) onlyTerminates(old, p *compile.Pod) bool {
	if old == nil || old.Terminating == p.Terminating || old.Endpoint.Doubtful {
		return false
	}
	before := *old
	before.Terminating = p.Terminating
	return before.Equal(p) && !slices.ContainsFunc(p.Claims(), func(a netip.Addr) bool { return c.addresses.contested[a] != nil })
}

// Doubt notes that a pod of another node is gone or has other labels, which is not known.
// It reports whether verdicts can differ by it.
func (c *Cluster) Doubt(namespace, name string) bool {
	key := podKey{namespace, name}
	ns := c.namespaces[namespace]
	if ns == nil || ns.pods[name] == nil || c.local[key] || ns.pods[name].Endpoint.Doubtful {
		return false
	}
	old := ns.pods[name]
	now := *old
	now.Endpoint.Doubtful = true
	c.replacePod(old, &now)
	return c.matters(key, &now)
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
	delete(ns.pods, key.name)
	c.followUnaddressed(key, nil)
	c.forgetLocal(key)
	return mattered
}

// replacePod replaces old, which may be nil, by now, which has the same name.
func (c *Cluster) replacePod(old, now *compile.Pod) {
	c.addresses.replace(old, now, c.podOf)
	c.namespace(now.Endpoint.Namespace).pods[now.Endpoint.Name] = now
	c.followUnaddressed(keyOf(now), now)
}

// followUnaddressed notes whether the pod of that name, nil if it is gone, runs on
// another node and has no address yet.
func (c *Cluster) followUnaddressed(key podKey, p *compile.Pod) {
	is := p != nil && p.OwnNetwork && len(p.Addrs) == 0 && p.Node != "" && !c.cfg.enforces(p.Node)
	if !is && !c.unaddressed[key] {
		return
	}
	c.newcomers = nil
	if is {
		c.unaddressed[key] = true
	} else {
		delete(c.unaddressed, key)
	}
}

// currentNewcomers returns the endpoints of pods of other nodes that have no address yet,
// up to one more than are evaluated.
func (c *Cluster) currentNewcomers() []*policy.Endpoint {
	if c.newcomers != nil {
		return c.newcomers
	}
	for key := range c.unaddressed {
		if len(c.newcomers) > policy.MaxNewcomers {
			break
		}
		c.newcomers = append(c.newcomers, &c.pod(key).Endpoint)
	}
	return c.newcomers
}

// forgetLocal removes a pod from those of this node, if it is one.
func (c *Cluster) forgetLocal(key podKey) {
	if c.local[key] {
		c.localPods, c.unannounced, c.interest.needs = nil, len(c.sandboxes) > 0, nil
	}
	delete(c.local, key)
	delete(c.stale, key)
}

// pod returns the pod of that name, which is known.
func (c *Cluster) pod(key podKey) *compile.Pod { return c.namespaces[key.namespace].pods[key.name] }

// podOf returns the pod that e belongs to.
func (c *Cluster) podOf(e *policy.Endpoint) *compile.Pod {
	return c.pod(podKey{e.Namespace, e.Name})
}

// podAt returns the pod with that address, nil if there is none.
func (c *Cluster) podAt(addr netip.Addr) *compile.Pod {
	if e := c.addresses.at(addr); e != nil {
		return c.podOf(e)
	}
	return nil
}

// Pods yields all pods, in no order. Meanwhile the Cluster must not change.
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
