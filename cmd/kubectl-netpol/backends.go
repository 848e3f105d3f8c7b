package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/exposure"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// serviceAt returns the Service that has an address, nil if none is known.
func (f *sideFinder) serviceAt(name string) *corev1.Service {
	addr, err := netip.ParseAddr(name)
	if err != nil {
		return nil
	}
	return f.services.at(addr)
}

// serviceOf returns the Service that a name or an address names, nil if it names none.
func (f *sideFinder) serviceOf(name string) *corev1.Service {
	if !namesService(name) {
		return f.serviceAt(name)
	}
	w, _ := workloads.Parse(name)
	return f.services.named(cmp.Or(w.Namespace, f.namespace), w.Name)
}

// findClient returns the side of a name like find. No packet comes from a cluster IP: as a
// client, it stands for what is behind it.
func (f *sideFinder) findClient(name string) (reachability.Side, []string, error) {
	s := f.serviceAt(name)
	if s == nil || !slices.Contains(reachability.ClusterIPs(s), netip.MustParseAddr(name).Unmap()) {
		side, err := f.find(name)
		return side, nil, err
	}
	side, err := f.behindPorts(s, s.Spec.Ports)
	side.Namespace, side.Name = "", name
	return side, []string{fmt.Sprintf("%s is an address of service %s/%s, and no packet comes from it: clients are what stands behind it, %s", name, s.Namespace, s.Name, f.memberNames(&side))}, err
}

// translated is a port of a Service or of a node to which packets are sent.
type translated struct {
	*corev1.Service // nil if a node translates its port to that of a pod
	port            corev1.ServicePort
	pod             *corev1.Pod
	podPort         reachability.Port
	what            string // how the packets are addressed
	// masqueraded says that the client's address may be replaced by that of a node.
	masqueraded bool
}

// of names what the port belongs to.
func (t *translated) of() string {
	if t.pod != nil {
		return "host port of pod " + t.pod.Namespace + "/" + t.pod.Name
	}
	return "service " + t.Namespace + "/" + t.Name
}

// translation returns the port to which packets to a name and a port go, nil if they are not
// translated. An address of a Service without such a port is an error.
func (f *sideFinder) translation(name string, port reachability.Port) (*translated, error) {
	if port == (reachability.Port{}) {
		return nil, nil
	}
	s := f.serviceOf(name)
	if s == nil {
		return f.atNode(name, port), nil
	}
	of := s.Namespace + "/" + s.Name
	i := slices.IndexFunc(s.Spec.Ports, func(p corev1.ServicePort) bool {
		return cmp.Or(string(p.Protocol), "TCP") == port.Proto.String() && (port.Name != "" && p.Name == port.Name || port.Name == "" && p.Port == int32(port.Number))
	})
	switch {
	case namesService(name) && (i < 0 || s.Spec.ClusterIP == corev1.ClusterIPNone):
		return nil, nil // a port of the endpoints
	case namesService(name):
		return &translated{Service: s, port: s.Spec.Ports[i], what: fmt.Sprintf("port %d is that of service %s; policies see what stands behind it", s.Spec.Ports[i].Port, of)}, nil
	case i < 0:
		return nil, fmt.Errorf("%s is an address of service %s, which has no port %s: such packets are dropped", name, of, trafficName(port))
	}
	t := &translated{Service: s, port: s.Spec.Ports[i], what: fmt.Sprintf("%s is an address of service %s; policies see what stands behind its port %d", name, of, s.Spec.Ports[i].Port)}
	t.masqueraded = !slices.Contains(reachability.ClusterIPs(s), netip.MustParseAddr(name).Unmap())
	return t, nil
}

// unused returns an error if a name is an address in a range of Services that no Service has.
func (f *sideFinder) unused(name string) error {
	addr, err := netip.ParseAddr(name)
	if err != nil {
		return nil
	}
	r := f.services.free(addr)
	if e, err := f.cluster.Endpoint(name); !r.IsValid() || err != nil || e.Kind != reachability.External {
		return nil
	}
	if f.services.limit != "" {
		return fmt.Errorf("%s is in the range of Services %v, and no known Service has it: %s", name, r, f.services.limit)
	}
	return fmt.Errorf("%s is in the range of Services %v, and no Service has it: packets to it are dropped, and none come from it", name, r)
}

// atNode returns the port of a Service or a pod that a port of a node stands for, or nil.
func (f *sideFinder) atNode(name string, port reachability.Port) *translated {
	if !isAddress(name) {
		return nil
	}
	node, err := f.cluster.Endpoint(name)
	if err != nil || node.Kind != reachability.Node {
		return nil
	}
	s, i := f.services.atNodePort(corev1.Protocol(port.Proto.String()), port.Number)
	if s == nil {
		return f.atHostPort(netip.MustParseAddr(name).Unmap(), node.Node, port)
	}
	what := fmt.Sprintf("%s of each node is a NodePort of service %s/%s; policies see what stands behind it", trafficName(port), s.Namespace, s.Name)
	return &translated{Service: s, port: s.Spec.Ports[i], what: what, masqueraded: true}
}

// atHostPort returns the port of a pod of a node that has a port of the node, or nil.
func (f *sideFinder) atHostPort(addr netip.Addr, node string, port reachability.Port) *translated {
	for _, p := range f.pods {
		if p.Spec.NodeName != node {
			continue
		}
		for _, declared := range exposure.HostPorts(p) {
			own, err := netip.ParseAddr(declared.HostIP)
			elsewhere := err == nil && !own.IsUnspecified() && own.Unmap() != addr
			if elsewhere || declared.HostPort != int32(port.Number) || string(cmp.Or(declared.Protocol, corev1.ProtocolTCP)) != port.Proto.String() {
				continue
			}
			what := fmt.Sprintf("%s of node %s is a host port; policies see the pod behind it", trafficName(port), node)
			return &translated{pod: p, podPort: reachability.Port{Proto: port.Proto, Number: uint16(declared.ContainerPort)}, what: what}
		}
	}
	return nil
}

// notes says what is behind t.
func (f *sideFinder) notes(t *translated, side *reachability.Side, at reachability.Port) []string {
	notes := []string{fmt.Sprintf("%s: %s at %s", t.what, f.memberNames(side), trafficName(at))}
	if t.masqueraded && len(t.Spec.Selector) > 0 && t.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		notes = append(notes, "a pod on another node than the one that such packets enter sees that node's address as their source (externalTrafficPolicy: Cluster)")
	}
	return notes
}

// refusedByBalancer says that a load balancer, the address dst, takes no connections from the
// address src.
func (f *sideFinder) refusedByBalancer(src, dst string) []string {
	s, addr := f.serviceAt(dst), parsedAddress(src)
	if s == nil || !addr.IsValid() || !slices.ContainsFunc(s.Status.LoadBalancer.Ingress, func(i corev1.LoadBalancerIngress) bool { return parsedAddress(i.IP) == parsedAddress(dst) }) {
		return nil
	}
	ranges := exposure.SourceRanges(s)
	for _, r := range ranges {
		if block, err := netip.ParsePrefix(r); err != nil || block.Contains(addr) {
			return nil
		}
	}
	if len(ranges) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s is in none of loadBalancerSourceRanges of service %s/%s (%s): the load balancer refuses it, whatever policies say", src, s.Namespace, s.Name, shorten(ranges))}
}

// parsedAddress returns an address, the zero one for other names.
func parsedAddress(name string) netip.Addr {
	addr, _ := netip.ParseAddr(name)
	return addr.Unmap()
}

// memberNames names the members of a side, the workloads instead of their pods.
func (f *sideFinder) memberNames(side *reachability.Side) string {
	members := membersOf(*side)
	workload := map[string]string{}
	for _, p := range f.pods {
		if name := p.Namespace + "/" + p.Name; members[name] {
			workload[name] = workloadOf(p)
		}
	}
	var names []string
	for _, m := range side.Members {
		names = append(names, cmp.Or(workload[m.Name], m.Name))
	}
	return shorten(compacted(names))
}

// findAt returns the side of a server and the port there: of an address or a port of a Service
// that of what stands behind it, and sentences that say so. Without a port, the side has all
// that are behind the Service.
func (f *sideFinder) findAt(name string, port reachability.Port) (side reachability.Side, at reachability.Port, notes []string, err error) {
	t, err := f.translation(name, port)
	switch s := f.serviceAt(name); {
	case err != nil:
		return side, port, nil, err
	case t != nil && t.pod != nil:
		side, err = f.endpoint(t.pod.Namespace + "/" + t.pod.Name)
		side.Ports = []reachability.Port{t.podPort}
	case t != nil:
		side, err = f.behindPorts(t.Service, []corev1.ServicePort{t.port})
	case s != nil:
		side, err = f.behindPorts(s, s.Spec.Ports)
	default:
		side, err = f.find(name)
		return side, port, f.notOfService(name, &side, port), err
	}
	if isAddress(name) {
		side.Namespace, side.Name = "", name
	}
	if err != nil || t == nil {
		return side, port, nil, err
	}
	at, side.Ports = side.Ports[0], nil
	return side, at, f.notes(t, &side, at), nil
}

// notOfService says that a Service has no such port, neither of its own nor behind it.
func (f *sideFinder) notOfService(name string, side *reachability.Side, port reachability.Port) []string {
	if !namesService(name) || port == (reachability.Port{}) || len(side.Ports) == 0 || port.Proto == packet.ICMP {
		return nil
	}
	declared := f.declaredPorts(side)
	for _, p := range side.Ports {
		named := p.Name != "" && slices.ContainsFunc(declared, func(d string) bool { return d == fmt.Sprintf("%v %d (%s)", port.Proto, port.Number, p.Name) })
		if p == port || named && p.Proto == port.Proto || port.Name != "" {
			return nil
		}
	}
	s := f.serviceOf(name)
	if s.Spec.ClusterIP == corev1.ClusterIPNone { // its name resolves to the pods
		return nil
	}
	return []string{fmt.Sprintf("service %s/%s has no port %s, and drops such packets; it has %s. What is answered is about that port of what stands behind it", s.Namespace, s.Name, trafficName(port), strings.Join(servicePorts(s.Spec.Ports), ", "))}
}

// Server implements intent.Names.
func (f *sideFinder) Server(name string, port reachability.Port) (side reachability.Side, at reachability.Port, of string, err error) {
	t, err := f.translation(name, port)
	if err != nil {
		return side, port, "", err
	}
	if t != nil {
		of = t.of()
	}
	side, at, _, err = f.findAt(name, port)
	return side, at, of, err
}

// Client implements intent.Names.
func (f *sideFinder) Client(name string) (side reachability.Side, of string, err error) {
	side, notes, err := f.findClient(name)
	if s := f.serviceAt(name); notes != nil {
		of = "service " + s.Namespace + "/" + s.Name
	}
	return side, of, err
}

// serviceSide returns the pods behind a Service with its target ports.
func (f *sideFinder) serviceSide(namespace, name string) (reachability.Side, error) {
	s := f.services.named(namespace, name)
	switch {
	case s != nil:
		return f.behindPorts(s, s.Spec.Ports)
	case f.services.limit != "":
		return reachability.Side{}, fmt.Errorf("no service %s in namespace %s is known: %s", name, namespace, f.services.limit)
	}
	return reachability.Side{}, fmt.Errorf("no service %s in namespace %s", name, namespace)
}

// behindPorts returns what is behind some ports of a Service.
func (f *sideFinder) behindPorts(s *corev1.Service, ports []corev1.ServicePort) (reachability.Side, error) {
	namespace, name, spec := s.Namespace, s.Name, &s.Spec
	side := reachability.Side{Namespace: namespace, Name: workloads.Ref{Kind: workloads.Service, Name: name}.Title()}
	if len(spec.Selector) == 0 {
		return f.endpointsOf(side, s, ports)
	}
	side.Replicated = true
	for _, p := range ports {
		port, err := reachability.TargetPort(&p)
		if err != nil {
			return reachability.Side{}, fmt.Errorf("service %s/%s: targetPort: %w", namespace, name, err)
		}
		side.Ports = append(side.Ports, port)
	}
	selector := labels.SelectorFromSet(spec.Selector)
	return f.addMembers(side, fmt.Sprintf("service %s selects no pod (%s)", name, selector), func(p *corev1.Pod) bool {
		return p.Namespace == namespace && selector.Matches(labels.Set(p.Labels))
	})
}

// endpointsOf returns the side of a Service without a selector: the addresses that its
// EndpointSlices or Endpoints have for ports.
func (f *sideFinder) endpointsOf(side reachability.Side, s *corev1.Service, ports []corev1.ServicePort) (reachability.Side, error) {
	of := s.Namespace + "/" + s.Name
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return side, fmt.Errorf("service %s is another name for %s: name what has this name", of, s.Spec.ExternalName)
	}
	known := map[string]bool{}
	for _, b := range f.services.backends.Behind(s, ports) {
		port, err := reachability.ParsePort(fmt.Sprint(b.Port), string(b.Protocol))
		if err != nil {
			return side, fmt.Errorf("endpoints of service %s: %w", of, err)
		}
		if !slices.Contains(side.Ports, port) {
			side.Ports = append(side.Ports, port)
		}
		if known[b.Address] {
			continue
		}
		known[b.Address] = true
		e, err := f.cluster.Endpoint(b.Address)
		if err != nil {
			return side, fmt.Errorf("endpoints of service %s: %w", of, err)
		}
		side.Members = append(side.Members, e)
	}
	switch {
	case len(side.Members) == 0 && f.services.backendLimit != "":
		return side, fmt.Errorf("service %s has no selector, and what is behind it is not known: %s", of, f.services.backendLimit)
	case len(side.Members) == 0:
		return side, fmt.Errorf("service %s has no selector, and no Endpoints or EndpointSlice with its ports: what is behind it is not known", of)
	case len(side.Ports) > len(ports):
		return side, errors.New("the endpoints of service " + of + " have different ports: name one of their addresses")
	}
	return side, nil
}
