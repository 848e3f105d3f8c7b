package clusterfiles

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/workloads"
)

// assumePods adds a pod for each workload that has none, in this order: a workload whose
// controller is there, or has a pod, needs none of its own.
func (c *Objects) assumePods(templates []object) {
	have := map[workloads.Ref]bool{}
	taken := map[key]bool{}
	podKey := func(p *corev1.Pod) key { return key{workloads.Pod, p.Namespace, p.Name} }
	for _, p := range c.Pods {
		have[workloads.Of(p)], taken[podKey(p)] = true, true
	}
	for _, o := range templates {
		p, ok := workloads.PodOf(o.Object)
		if !ok {
			continue
		}
		c.addSelector(workloads.Of(p), o)
		if have[workloads.Of(p)] || c.controlled(o) {
			continue
		}
		if taken[podKey(p)] { // by a pod or a workload of another kind
			p.Name += "-" + strings.ToLower(o.kind.Kind)
		}
		have[workloads.Of(p)], taken[podKey(p)] = true, true
		source := o.source
		source.prefix = o.kind.template
		c.sources[podKey(p)] = source
		c.Pods = append(c.Pods, p)
		c.AssumedPods = append(c.AssumedPods, workloads.Of(p))
	}
	slices.SortFunc(c.Pods, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	slices.SortFunc(c.AssumedPods, workloads.Ref.Compare)
}

// addSelector keeps the selector of a workload. That of a controlled one does not take the
// place of its controller's.
func (c *Objects) addSelector(w workloads.Ref, o object) {
	if s, ok := workloads.SelectorOf(o.Object); ok && c.Selectors[w] == nil {
		c.Selectors[w] = s
	}
}

// controlled reports whether the controller of an object is among the objects.
func (c *Objects) controlled(o object) bool {
	owner := metav1.GetControllerOfNoCopy(o)
	if owner == nil {
		return false
	}
	_, there := c.sources[key{owner.Kind, o.GetNamespace(), owner.Name}]
	return there
}

// assumeNodes adds the nodes that only pods name, with the addresses in the pods' status.
func (c *Objects) assumeNodes() {
	known := map[string]bool{}
	for _, n := range c.Nodes {
		known[n.Name] = true
	}
	assumed := map[string]*corev1.Node{}
	for _, p := range c.Pods {
		name := p.Spec.NodeName
		if name == "" || known[name] {
			continue
		}
		if assumed[name] == nil {
			assumed[name] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		}
		addresses := &assumed[name].Status.Addresses
		for _, ip := range hostIPs(p) {
			a := corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip}
			if !slices.Contains(*addresses, a) {
				*addresses = append(*addresses, a)
			}
		}
	}
	c.AssumedNodes = slices.Sorted(maps.Keys(assumed))
	for _, name := range c.AssumedNodes {
		c.Nodes = append(c.Nodes, assumed[name])
	}
	slices.SortFunc(c.Nodes, func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
}

// hostIPs returns the addresses of a pod's node in its status.
func hostIPs(p *corev1.Pod) []string {
	var ips []string
	for _, ip := range p.Status.HostIPs {
		ips = append(ips, ip.IP)
	}
	if len(ips) == 0 && p.Status.HostIP != "" {
		ips = append(ips, p.Status.HostIP)
	}
	return ips
}

// assumeNamespaces adds those of names that have no object.
func (c *Objects) assumeNamespaces(names []string) {
	for _, name := range names {
		if slices.ContainsFunc(c.Namespaces, func(n *corev1.Namespace) bool { return n.Name == name }) {
			continue
		}
		n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		setDefaults(n)
		c.Namespaces = append(c.Namespaces, n)
		c.AssumedNamespaces = append(c.AssumedNamespaces, name)
	}
	slices.SortFunc(c.Namespaces, func(a, b *corev1.Namespace) int { return cmp.Compare(a.Name, b.Name) })
}

// assumeAddresses gives addresses to the pods without any that have not ended. A host-network
// pod has those of its node in its status, where they are known.
func (c *Objects) assumeAddresses(others []compile.Object) {
	var without []*corev1.Pod
	for _, p := range c.Pods {
		if len(compile.Addresses(p)) > 0 || compile.Ended(p) {
			continue
		}
		if ips := hostIPs(p); p.Spec.HostNetwork && len(ips) > 0 {
			for _, ip := range ips {
				p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
			}
			continue
		}
		without = append(without, p)
		c.Unaddressed = append(c.Unaddressed, p.Namespace+"/"+p.Name)
	}
	if len(without) == 0 {
		return
	}
	used := c.usedRanges(others)
	for _, f := range c.families() {
		free := f.free(used, len(without))
		c.AssumedAddresses = append(c.AssumedAddresses, free)
		addr := free.Addr()
		for _, p := range without {
			addr = addr.Next() // the first is that of the network
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: addr.String()})
		}
	}
}
