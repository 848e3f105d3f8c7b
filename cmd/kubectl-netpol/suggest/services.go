package suggest

import (
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/exposure"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
)

// resolveService gives a destination behind a Service the name of it, and finds its siblings: the
// Service may choose any of them for the next connection.
func (s *suggester) resolveService(r *resolved) error {
	service := ""
	for name, backends := range s.input.Behind {
		if slices.ContainsFunc(backends, func(b exposure.Backend) bool { return at(b, r.port) == r.destination.addr }) {
			service = max(service, name)
		}
	}
	if service == "" || r.dst.selection != nil || !r.dst.prefix.IsSingleIP() {
		return nil
	}
	named := *r.dst
	r.dst = &named
	r.dst.title = r.destination.addr.String() + " (service " + service + ")"
	for _, b := range s.input.Behind[service] {
		addr := at(b, r.port)
		if !addr.IsValid() || addr == r.destination.addr {
			continue
		}
		sibling, err := s.address(addr, nil)
		if err != nil {
			return err
		}
		sibling.title = addr.String() + " (service " + service + ")"
		r.siblings = append(r.siblings, sibling)
	}
	return nil
}

// at returns the address of a backend with this port, an invalid one of another.
func at(b exposure.Backend, port reachability.Port) netip.Addr {
	addr, err := netip.ParseAddr(b.Address)
	if err != nil || reachability.ProtocolOf(b.Protocol) != port.Proto || b.Port != int32(port.Number) {
		return netip.Addr{}
	}
	return addr.Unmap()
}
