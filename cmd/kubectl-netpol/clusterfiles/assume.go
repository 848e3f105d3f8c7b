package clusterfiles

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// assumePods adds one pod for each workload that has none. It runs in the order of
// templates, owners first, because a workload whose controller is in the files, or that
// already has a pod, needs no pod of its own.
func (c *Objects) assumePods(templates []object) {
	have := map[workloads.Ref]bool{}
	names := map[key]bool{}
	podKey := func(p *corev1.Pod) key { return key{workloads.Pod, p.Namespace, p.Name} }
	for _, p := range c.Pods {
		have[workloads.Of(p)], names[podKey(p)] = true, true
	}
	for _, o := range templates {
		p, ok := workloads.PodOf(o.Object)
		if !ok {
			continue
		}
		c.addSelector(workloads.Of(p), o)
		c.Workloads = append(c.Workloads, workloads.LabelsOf(o.Object, p))
		if have[workloads.Of(p)] || c.controlled(o) {
			continue
		}
		if names[podKey(p)] { // by a pod, or by a workload of another kind
			p.Name += "-" + strings.ToLower(o.kind.Kind)
		}
		have[workloads.Of(p)], names[podKey(p)] = true, true
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

// addSelector records the selector of a workload. The selector of a controlled workload
// does not replace its controller's.
func (c *Objects) addSelector(w workloads.Ref, o object) {
	if s, ok := workloads.SelectorOf(o.Object); ok && c.Selectors[w] == nil {
		c.Selectors[w] = s
	}
}

// controlled reports whether the files contain the controller of an object.
func (c *Objects) controlled(o object) bool {
	owner := metav1.GetControllerOfNoCopy(o)
	if owner == nil {
		return false
	}
	_, exists := c.sources[key{owner.Kind, o.GetNamespace(), owner.Name}]
	return exists
}

// assumeNodes adds the nodes that only pods mention.
func (c *Objects) assumeNodes() {
	known := map[string]bool{}
	for _, n := range c.Nodes {
		known[n.Name] = true
	}
	for _, n := range NodesOf(c.Pods) {
		if !known[n.Name] {
			c.Nodes, c.AssumedNodes = append(c.Nodes, n), append(c.AssumedNodes, n.Name)
		}
	}
	slices.SortFunc(c.Nodes, func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
}

// NodesOf returns the nodes of pods, ordered by name, with the host addresses in the status of the pods.
func NodesOf(pods []*corev1.Pod) []*corev1.Node {
	nodes := map[string]*corev1.Node{}
	for _, p := range pods {
		name := p.Spec.NodeName
		if name == "" {
			continue
		}
		if nodes[name] == nil {
			nodes[name] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		}
		addresses := &nodes[name].Status.Addresses
		for _, ip := range hostIPs(p) {
			a := corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip}
			if !slices.Contains(*addresses, a) {
				*addresses = append(*addresses, a)
			}
		}
	}
	var all []*corev1.Node
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		all = append(all, nodes[name])
	}
	return all
}

// hostIPs returns the host addresses in a pod's status.
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

// assumeNamespaces adds the namespaces that are named but have no object.
func (c *Objects) assumeNamespaces(names []string) {
	known := map[string]bool{}
	for _, n := range c.Namespaces {
		known[n.Name] = true
	}
	for _, name := range names {
		if known[name] {
			continue
		}
		n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		setDefaults(n)
		c.Namespaces = append(c.Namespaces, n)
		c.AssumedNamespaces = append(c.AssumedNamespaces, name)
	}
	slices.SortFunc(c.Namespaces, func(a, b *corev1.Namespace) int { return cmp.Compare(a.Name, b.Name) })
}

// assumeAddresses gives a placeholder of each family to every running pod without an address. A
// host-network pod gets the node addresses in its status, where they are known. taken is the number
// of placeholders that other pods have.
func (c *Objects) assumeAddresses(taken int) {
	v4, v6 := c.Families()
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
		c.Unaddressed = append(c.Unaddressed, p.Namespace+"/"+p.Name)
		p.Status.PodIPs = workloads.Placeholders(taken+len(c.Unaddressed), v4, v6)
	}
}

// Families reports which address families pods, nodes and Services have: IPv4 if no object has an
// address.
func (c *Objects) Families() (v4, v6 bool) {
	add := func(texts ...string) {
		for _, text := range texts {
			if a, err := netip.ParseAddr(text); err == nil { // not "None"
				v4, v6 = v4 || a.Unmap().Is4(), v6 || !a.Unmap().Is4()
			} else if r, err := netip.ParsePrefix(text); err == nil {
				v4, v6 = v4 || r.Addr().Is4(), v6 || r.Addr().Is6()
			}
		}
	}
	for _, p := range c.Pods {
		for _, a := range compile.Addresses(p) {
			add(a.String())
		}
	}
	for _, n := range c.Nodes {
		add(append(n.Spec.PodCIDRs, n.Spec.PodCIDR)...)
		for _, a := range n.Status.Addresses {
			add(a.Address)
		}
	}
	for _, s := range c.Services {
		add(append(s.Spec.ClusterIPs, s.Spec.ClusterIP)...)
	}
	for _, r := range c.ServiceCIDRs {
		add(r.Spec.CIDRs...)
	}
	return v4 || !v6, v6
}
