package policy

import "slices"

// Naming returns, for each policy whose rules are in force for pods of this node, those of pods that the
// rules select as peers, in the same order. It walks all rules, so it is too slow for the packet path.
func (s *Snapshot) Naming(pods []*Endpoint) map[Ref][]*Endpoint {
	naming := map[Ref][]*Endpoint{}
	seen := map[*Chain]bool{nil: true}
	for _, a := range s.m.Local.all {
		e := s.m.Endpoints.At(a)
		for _, c := range []*Chain{e.Ingress, e.Egress} {
			if !seen[c] {
				seen[c] = true
				c.addNaming(naming, pods)
			}
		}
	}
	for ref, named := range naming {
		naming[ref] = slices.DeleteFunc(slices.Clone(pods), func(p *Endpoint) bool { return !slices.Contains(named, p) })
	}
	return naming
}

func (c *Chain) addNaming(naming map[Ref][]*Endpoint, pods []*Endpoint) {
	for i := range c.Rules {
		r := &c.Rules[i]
		if r.Policy == nil || r.AnyPeer {
			continue
		}
		for _, pod := range pods {
			if r.names(pod) && !slices.Contains(naming[*r.Policy], pod) {
				naming[*r.Policy] = append(naming[*r.Policy], pod)
			}
		}
	}
}

// names reports whether a peer of the rule selects a pod.
func (r *Rule) names(pod *Endpoint) bool {
	return slices.ContainsFunc(r.Peers, func(p Peer) bool { return p.Pods != nil && p.Pods.Selects(pod) })
}
