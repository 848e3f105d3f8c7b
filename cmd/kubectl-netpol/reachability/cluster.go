package reachability

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// Cluster is an immutable state of a cluster that answers queries. All methods may be
// called from any goroutine.
type Cluster struct {
	in        clusterstate.Input
	stated    []netip.Prefix // see New
	snapshot  *policy.Snapshot
	owners    map[netip.Addr]bool // the addresses of pods
	disputes  *disputes
	disputed  []*policy.Endpoint     // the pods with an address in dispute, as on their nodes
	enforced  bool                   // see IfEnforced
	pods      map[string]*corev1.Pod // by "namespace/name"
	endpoints map[string]Endpoint    // the pods that can be queried
	owned     map[string]int         // number of endpoints by controller
	families  map[Family]bool        // those that some endpoint has
	nodes     map[netip.Addr]string  // node that has the address
	// labels are the nodes' labels by node name.
	labels map[string]labels.Set
	// toHost has the addresses of the pods whose traffic to their own node is evaluated.
	toHost map[netip.Addr]bool
	// traits and equals are made from the snapshot on first use.
	traits func() *traits
	equals func() map[*policy.Chain]*policy.Chain // by chain, the first one with equal rules
	// places and withoutRanges are for pods with placeholders.
	places        func() *places
	withoutRanges func() *policy.Snapshot
}

// New builds the cluster from the objects of in. Each pod is evaluated on its own node;
// in.NodeName is ignored. Pods with placeholders for addresses are in podRanges, see PodRanges.
func New(in clusterstate.Input, podRanges ...netip.Prefix) *Cluster {
	in.AllNodes = true
	c := &Cluster{
		in:        in,
		stated:    podRanges,
		owners:    map[netip.Addr]bool{},
		snapshot:  clusterstate.Compile(in),
		pods:      make(map[string]*corev1.Pod, len(in.Pods)),
		endpoints: make(map[string]Endpoint, len(in.Pods)),
		owned:     map[string]int{},
		families:  map[Family]bool{},
		nodes:     nodeAddresses(in),
		labels:    make(map[string]labels.Set, len(in.Nodes)),
		toHost:    map[netip.Addr]bool{},
	}
	c.disputes = newDisputes(in, c.nodes)
	c.index()
	for _, n := range in.Nodes {
		c.labels[n.Name] = n.Labels
	}
	for _, addr := range c.snapshot.SelectedToHost() {
		c.toHost[addr] = true
	}
	for _, pod := range in.Pods {
		c.pods[pod.Namespace+"/"+pod.Name] = pod
		for _, addr := range compile.Addresses(pod) {
			c.owners[addr] = true
		}
		if pod.Spec.HostNetwork && !compile.Ended(pod) {
			c.addHostNetwork(pod)
		}
	}
	for _, addr := range c.snapshot.Local() {
		c.addEndpoint(c.snapshot.Endpoint(addr), addr)
	}
	c.addDisputed()
	for name, s := range c.endpoints {
		c.owned[c.owner(name)]++
		c.families[IPv4] = c.families[IPv4] || s.v4.IsValid()
		c.families[IPv6] = c.families[IPv6] || s.v6.IsValid()
	}
	return c
}

// addDisputed adds the endpoints that pods are to their own nodes at addresses in dispute.
func (c *Cluster) addDisputed() {
	for _, pod := range c.in.Pods {
		for _, addr := range ownAddresses(pod) {
			if !c.disputes.has(addr) {
				continue
			}
			if e := c.disputes.view(pod.Spec.NodeName).Endpoint(addr); e != nil && e.Namespace == pod.Namespace && e.Name == pod.Name {
				c.addEndpoint(e, addr)
				c.disputed = append(c.disputed, e)
			}
		}
	}
}

// index sets what is made from the snapshot on first use.
func (c *Cluster) index() {
	c.traits = sync.OnceValue(func() *traits { return newTraits(c) })
	c.places = sync.OnceValue(func() *places { return placesOf(c) })
	c.withoutRanges = sync.OnceValue(c.compileWithoutRanges)
	c.equals = sync.OnceValue(func() map[*policy.Chain]*policy.Chain { return equalChains(c) })
}

// nodeAddresses maps addresses to nodes, using Node objects and host-network pods. The API
// does not know all addresses of a node, such as those of bridges and tunnels.
func nodeAddresses(in clusterstate.Input) map[netip.Addr]string {
	nodes := map[netip.Addr]string{}
	for _, n := range in.Nodes {
		for _, a := range n.Status.Addresses {
			if addr, err := netip.ParseAddr(a.Address); err == nil && addr.Zone() == "" {
				nodes[addr.Unmap()] = n.Name
			}
		}
	}
	for _, pod := range in.Pods {
		if pod.Spec.HostNetwork && !compile.Ended(pod) {
			for _, addr := range compile.Addresses(pod) {
				nodes[addr] = pod.Spec.NodeName
			}
		}
	}
	return nodes
}

func (c *Cluster) addHostNetwork(pod *corev1.Pod) {
	s := Endpoint{Name: pod.Namespace + "/" + pod.Name, Node: pod.Spec.NodeName, Kind: HostNetworkPod, ports: compile.NamedPorts(pod)}
	for _, addr := range compile.Addresses(pod) {
		s.add(addr)
	}
	if s.v4.IsValid() || s.v6.IsValid() {
		c.endpoints[s.Name] = s
	}
}

// addEndpoint adds addr to the endpoint of pod e.
func (c *Cluster) addEndpoint(e *policy.Endpoint, addr netip.Addr) {
	s, known := c.endpoints[e.String()]
	if !known {
		s = Endpoint{Name: e.String(), Kind: Pod, Node: c.pods[e.String()].Spec.NodeName, ports: e.Ports}
	}
	s.add(addr)
	c.endpoints[s.Name] = s
}

// Pods returns the pods that can be queried in a family, ordered by name: running pods with
// an address. If namespaces are given, it returns only their pods.
func (c *Cluster) Pods(family Family, namespaces ...string) []Endpoint {
	var pods []Endpoint
	for _, name := range slices.Sorted(maps.Keys(c.endpoints)) {
		s := c.endpoints[name]
		if s.has(family) && (len(namespaces) == 0 || slices.Contains(namespaces, c.pods[name].Namespace)) {
			pods = append(pods, c.places().at(s)...)
		}
	}
	return pods
}

// LeftOut explains, ordered by name, why each pod that Pods does not return is missing
// there.
func (c *Cluster) LeftOut(family Family, namespaces ...string) []error {
	var reasons []error
	for _, name := range slices.Sorted(maps.Keys(c.pods)) {
		if len(namespaces) > 0 && !slices.Contains(namespaces, c.pods[name].Namespace) {
			continue
		}
		if s, ok := c.endpoints[name]; !ok {
			reasons = append(reasons, c.cannotAsk(name))
		} else if !s.has(family) {
			reasons = append(reasons, noAddress(s, family))
		}
	}
	return reasons
}

// DomainRules returns the rules that allow by domain name, ordered by name. What pods learn
// from DNS is known only to agents, so these names match no address here.
func (c *Cluster) DomainRules() []string {
	var found []string
	for r := range c.rules() {
		if slices.ContainsFunc(r.Peers, func(p policy.Peer) bool { return p.Domains != nil }) {
			found = append(found, r.Policy.String()+" "+field(policy.Egress, r.Index))
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// Findings returns the parts of policies that cannot be honoured.
func (c *Cluster) Findings() []policy.Finding { return c.snapshot.Findings() }
