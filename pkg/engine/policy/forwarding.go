package policy

import "net/netip"

// Forwarder is a pod of this node that may forward packets for others.
type Forwarder struct {
	Pod     *Endpoint
	Addrs   []netip.Addr   // of the pod, in ascending order
	Sources []netip.Prefix // allowed sources of forwarded packets, in ascending order
}

// Forwarders returns the pods of this node that may forward packets for others, in the
// order of their first addresses.
func (s *Snapshot) Forwarders() []Forwarder {
	if len(s.m.ForwardedSources) == 0 {
		return nil
	}
	var all []Forwarder
	index := map[*Endpoint]int{}
	for _, a := range s.m.Local.all {
		pod := s.m.Endpoints.At(a)
		sources := s.m.ForwardedSources[pod.Namespace]
		if len(sources) == 0 {
			continue
		}
		i, ok := index[pod]
		if !ok {
			i = len(all)
			index[pod] = i
			all = append(all, Forwarder{Pod: pod, Sources: sources})
		}
		all[i].Addrs = append(all[i].Addrs, a)
	}
	return all
}
