package lint

import (
	"fmt"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
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
					c.halfOpen(p, d, r, i, c.selects(s))
				}
			}
		}
	}
}

func (c *cluster) halfOpen(p *compiled, d policy.Direction, r *policy.Rule, i int, peers []*pod) {
	other := policy.Egress
	if d == policy.Egress {
		other = policy.Ingress
	}
	var denied []*pod
	for _, peer := range peers {
		found := false
		for _, subject := range p.subjects {
			src, dst := peer, subject
			if d == policy.Egress {
				src, dst = subject, peer
			}
			if src == dst {
				continue
			}
			for _, port := range portsOn(r, dst) {
				if !c.isolationDenies(src, dst, port.Proto, port.Port, other) {
					return
				}
				found = true
			}
		}
		if found {
			denied = append(denied, peer)
		}
	}
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

// portsOn returns the ports of a rule on a pod: the first number of each item or, for a
// rule without ports, those that the pod declares.
func portsOn(r *policy.Rule, dst *pod) []policy.NamedPort {
	if r.AnyPort {
		return slices.DeleteFunc(declaredPorts(dst.object), func(p policy.NamedPort) bool { return p.Proto == packet.Unknown })
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
