package reachability

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/words"
	"sigs.k8s.io/kube-network-policies/pkg/base/spelling"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// Family selects the address of an endpoint.
type Family string

// The families. FirstCommon chooses for each connection the first family that both
// endpoints have, IPv4 before IPv6.
const (
	FirstCommon Family = ""
	IPv4        Family = "IPv4"
	IPv6        Family = "IPv6"
)

// Kind is what an endpoint is.
type Kind uint8

// The kinds of endpoints.
const (
	External       Kind = iota // an address of neither a pod nor a node
	Pod                        // a pod with its own network
	HostNetworkPod             // a pod in the network of its node
	Node                       // an address of a node
)

// Endpoint is the source or the destination of connections.
type Endpoint struct {
	Name string // "namespace/name", or the address
	Kind Kind
	Node string // where it runs; empty for External and for an unscheduled pod

	v4, v6 netip.Addr
	ports  []policy.NamedPort

	// placeholder is set if the addresses are not known: v4 and v6 are then of a place.
	placeholder netip.Addr
	place       string // its ranges
	places      int    // how many there are
	another     bool   // whether this is not the first
}

// onHost reports whether policies treat the endpoint as a node rather than a pod.
func (s *Endpoint) onHost() bool { return s.Kind == HostNetworkPod || s.Kind == Node }

func (s *Endpoint) add(addr netip.Addr) {
	switch {
	case addr.Is4() && !s.v4.IsValid():
		s.v4 = addr
	case addr.Is6() && !s.v6.IsValid():
		s.v6 = addr
	}
}

// Addrs returns the endpoint's addresses, at most one of each family.
func (s *Endpoint) Addrs() []netip.Addr {
	return slices.DeleteFunc([]netip.Addr{s.v4, s.v6}, func(a netip.Addr) bool { return !a.IsValid() })
}

// first returns the preferred address: IPv4 if there is one.
func (s *Endpoint) first() netip.Addr {
	if s.v4.IsValid() {
		return s.v4
	}
	return s.v6
}

func (s *Endpoint) has(f Family) bool {
	return f != IPv6 && s.v4.IsValid() || f != IPv4 && s.v6.IsValid()
}

// addresses returns the addresses of a connection. ok is false if the endpoints have no
// common family.
func addresses(src, dst *Endpoint, f Family) (a, b netip.Addr, ok bool) {
	switch {
	case f != IPv6 && src.v4.IsValid() && dst.v4.IsValid():
		return src.v4, dst.v4, true
	case f != IPv4 && src.v6.IsValid() && dst.v6.IsValid():
		return src.v6, dst.v6, true
	}
	return netip.Addr{}, netip.Addr{}, false
}

// Endpoint returns the endpoint with that name: "namespace/pod", or any address. An error
// says what is wrong with the name and suggests similar pods if there is no such pod.
func (c *Cluster) Endpoint(name string) (Endpoint, error) {
	if addr, err := netip.ParseAddr(name); err == nil {
		if addr.Zone() != "" {
			return Endpoint{}, fmt.Errorf("%q: an address with a zone is valid on one link only", name)
		}
		return c.at(name, addr.Unmap()), nil
	}
	if s, ok := c.endpoints[name]; ok {
		return c.places().at(s)[0], nil
	}
	return Endpoint{}, c.cannotAsk(name)
}

// Endpoints returns the endpoint with that name, at each of the places where it may be.
func (c *Cluster) Endpoints(name string) ([]Endpoint, error) {
	e, err := c.Endpoint(name)
	if err != nil {
		return nil, err
	}
	return c.everywhere(&e), nil
}

func (c *Cluster) at(name string, addr netip.Addr) Endpoint {
	s := Endpoint{Name: name, Node: c.nodes[addr]}
	if e := c.snapshot.Endpoint(addr); e != nil {
		s.Kind, s.Node, s.ports = Pod, c.pods[e.String()].Spec.NodeName, e.Ports
	} else if s.Node != "" {
		s.Kind = Node
	}
	s.add(addr)
	return s
}

// cannotAsk explains why there is no endpoint of that name.
func (c *Cluster) cannotAsk(name string) error {
	pod, ok := c.pods[name]
	if !ok {
		return c.unknown(name)
	}
	addrs := compile.Addresses(pod)
	switch {
	case compile.Ended(pod):
		return fmt.Errorf("pod %s has ended (status.phase is %s) and has no network", name, pod.Status.Phase)
	case len(addrs) == 0:
		return fmt.Errorf("pod %s has no address yet (status.podIPs is empty), and agents evaluate by address", name)
	}
	return fmt.Errorf("pod %s does not own %v (status.podIPs): it is that of pod %v", name, addrs[0], c.snapshot.Endpoint(addrs[0]))
}

func (c *Cluster) unknown(name string) error {
	if namespace, _, qualified := strings.Cut(name, "/"); !qualified || namespace == "" {
		return fmt.Errorf("%q is neither an address nor namespace/pod", name)
	}
	if near := nearest(name, slices.Sorted(maps.Keys(c.pods))); len(near) > 0 {
		return fmt.Errorf("no pod %q; near it: %s", name, strings.Join(near, ", "))
	}
	namespace, _, _ := strings.Cut(name, "/")
	var siblings []string // without those that may come
	all := 0
	for other, pod := range c.pods {
		if IsNew(pod) {
			continue
		}
		all++
		if pod.Namespace == namespace {
			siblings = append(siblings, strings.TrimPrefix(other, namespace+"/"))
		}
	}
	slices.Sort(siblings)
	switch {
	case all == 0:
		return fmt.Errorf("no pod %q: there are no pods", name)
	case len(siblings) == 0:
		return fmt.Errorf("no pod %q: namespace %s has no pods", name, namespace)
	}
	return fmt.Errorf("no pod %q; namespace %s has %s", name, namespace, words.Few(siblings, 5, ", "))
}

// noAddress is the error for an endpoint without an address of the family.
func noAddress(s Endpoint, f Family) error { return fmt.Errorf("%s has no %s address", s.Name, f) }

// nearest returns up to three names that resemble name: those at the smallest edit
// distance, or with the same pod name in another namespace.
func nearest(name string, names []string) []string {
	const maxNames = 3
	limit := max(2, len(name)/4)
	distances := map[string]int{}
	_, pod, _ := strings.Cut(name, "/")
	for _, candidate := range names {
		d := spelling.Distance(name, candidate)
		switch {
		case strings.HasSuffix(candidate, "/"+pod):
			d = min(d, 1)
		case strings.HasPrefix(candidate, name): // name is that of a Deployment
			d = min(d, 2)
		}
		if d <= limit {
			distances[candidate] = d
		}
	}
	near := slices.Sorted(maps.Keys(distances))
	slices.SortStableFunc(near, func(a, b string) int { return distances[a] - distances[b] })
	return near[:min(maxNames, len(near))]
}
