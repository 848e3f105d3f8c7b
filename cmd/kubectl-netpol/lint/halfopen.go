package lint

import (
	"fmt"
	"slices"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// halfOpen finds peers whose other end is isolated and allows none of the connections that
// the item allows. It skips peers that are all pods, of the policy's namespace or of all:
// they are meant for pods to come.
func halfOpen(c *cluster) {
	for _, p := range c.policies {
		if p.admin() {
			continue
		}
		for d, r := range p.rules {
			for i := range r.Peers {
				if s := r.Peers[i].Pods; s != nil && (!s.Pods.Empty() || s.Namespace == "" && !s.Namespaces.Empty()) {
					c.halfOpen(p, d, r, i, s)
				}
			}
		}
	}
}

func (c *cluster) halfOpen(p *compiled, d policy.Direction, r *policy.Rule, i int, s *policy.PodSelector) {
	other := policy.Egress
	if d == policy.Egress {
		other = policy.Ingress
	}
	for _, group := range c.alike(s, other) {
		for _, subject := range p.subjects {
			peer := group[0]
			if peer == subject && len(group) > 1 {
				peer = group[1]
			}
			src, dst := peer, subject
			if d == policy.Egress {
				src, dst = subject, peer
			}
			if src == dst {
				continue
			}
			for _, port := range portsOn(r, dst) {
				if !c.isolationDenies(src, dst, port.Proto, port.Port, other, everywhere) {
					return
				}
			}
		}
	}
	denied := c.connected(p, d, r, s)
	if len(denied) == 0 {
		return
	}
	isolating := c.isolating(denied[0], other)
	if len(isolating) == 0 {
		return
	}
	src, dst := denied, p.subjects
	if d == policy.Egress {
		src, dst = p.subjects, denied
	}
	c.find(p, peerField(d, r, i), fmt.Sprintf("Allow it in the %v of a policy for %s, too.", other, names(denied)),
		"%s may connect to %s by this item; %s isolates %v of %s, and nothing allows it there", names(src), names(dst), isolating[0].ref(), other, names(denied))
}

// connected returns the pods of s that the ports of a rule give a connection with another pod. The
// caller must not change them.
func (c *cluster) connected(p *compiled, d policy.Direction, r *policy.Rule, s *policy.PodSelector) []*pod {
	hasPorts := func(dst *pod) bool { return len(portsOn(r, dst)) > 0 }
	subjects := p.subjects
	if d == policy.Ingress {
		subjects = slices.DeleteFunc(slices.Clone(subjects), func(dst *pod) bool { return !hasPorts(dst) })
	}
	if d == policy.Ingress && len(subjects) > 1 {
		return c.selects(s) // each has another one
	}
	return slices.DeleteFunc(slices.Clone(c.selects(s)), func(peer *pod) bool {
		return !slices.ContainsFunc(subjects, func(subject *pod) bool { return subject != peer }) || d == policy.Egress && !hasPorts(peer)
	})
}

// alike divides the pods of s into groups for which isolation in a direction has the same effect:
// they have the same rules, families and, as servers, ports. Where administrators decide about
// egress, each server is a group, because their rules may distinguish it from others.
func (c *cluster) alike(s *policy.PodSelector, d policy.Direction) [][]*pod {
	selected := c.matching(s)
	if selected.alike[d] != nil {
		return selected.alike[d]
	}
	type likeness struct {
		rules any
		ports string
		alone *pod
	}
	index := map[likeness]int{}
	admins := slices.ContainsFunc(c.admins, func(p *compiled) bool { return p.Applies(policy.Egress) })
	for _, p := range selected.pods {
		var key likeness
		at := c.at(p)
		if at == nil || d == policy.Ingress && admins {
			key.alone = p
		} else {
			key.rules = c.evaluator().Rules(at, d)
		}
		if d == policy.Ingress {
			key.ports = fmt.Sprint(p.endpoint.Ports, reachability.DeclaredPorts(p.object))
		}
		i, known := index[key]
		if !known {
			i = len(index)
			index[key] = i
			selected.alike[d] = append(selected.alike[d], nil)
		}
		selected.alike[d][i] = append(selected.alike[d][i], p)
	}
	return selected.alike[d]
}

// portsOn returns the ports of a rule on a pod: the first number of each item or, for a
// rule without ports, those that the pod declares.
func portsOn(r *policy.Rule, dst *pod) []policy.NamedPort {
	if r.AnyPort {
		return reachability.DeclaredPorts(dst.object)
	}
	var ports []policy.NamedPort
	for _, p := range r.Ports {
		switch {
		case p.Name == "" && p.First <= p.Last:
			ports = append(ports, policy.NamedPort{Proto: p.Proto, Port: max(1, p.First)})
		case p.Name != "":
			for _, n := range dst.endpoint.Ports {
				if n.Name == p.Name && n.Proto == p.Proto {
					ports = append(ports, n)
				}
			}
		}
	}
	return ports
}
