package suggest

import (
	"net/netip"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
)

// Behind is an address and a port behind a Service without a selector, such as that of the API
// server.
type Behind struct {
	Service string // "namespace/name"
	Addr    netip.Addr
	Port    reachability.Port
}

// resolveService gives a destination behind a Service the name of it, and finds its siblings: the
// Service may choose any of them for the next connection.
func (s *suggester) resolveService(r *resolved) error {
	service := ""
	for _, b := range s.input.Behind {
		if b.Addr == r.destination.addr && b.Port == r.port {
			service = b.Service
		}
	}
	if service == "" || r.dst.selection != nil || !r.dst.prefix.IsSingleIP() {
		return nil
	}
	named := *r.dst
	r.dst = &named
	r.dst.title = r.destination.addr.String() + " (service " + service + ")"
	for _, b := range s.input.Behind {
		if b.Service != service || b.Port != r.port || b.Addr == r.destination.addr {
			continue
		}
		sibling, err := s.address(b.Addr, nil)
		if err != nil {
			return err
		}
		sibling.title = b.Addr.String() + " (service " + service + ")"
		r.siblings = append(r.siblings, sibling)
	}
	return nil
}
