package lint

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// destinations returns the pods on which a rule's ports are resolved: the subjects for
// ingress, the peers for egress. all reports whether these are all destinations, so that no
// peer is an address.
func (c *cluster) destinations(p *compiled, d policy.Direction, r *policy.Rule) (pods []*pod, all bool) {
	if d == policy.Ingress {
		return p.subjects, true
	}
	for i := range r.Peers {
		if r.Peers[i].Pods == nil {
			return nil, false
		}
		pods = append(pods, c.selects(r.Peers[i].Pods)...)
	}
	return pods, !r.AnyPeer
}

func namedPort(c *cluster) {
	for _, p := range c.policies {
		for d, r := range p.rules {
			pods, all := c.destinations(p, d, r)
			for i, port := range r.Ports {
				switch {
				case port.Name == "":
				case d == policy.Egress && onlyAddresses(r):
					c.find(p, portField(p, d, r, i), "Write the number of the port.", "port %q has a name, and the peers are addresses, which declare no ports", port.Name)
				case all && len(pods) > 0:
					c.namedPort(p, portField(p, d, r, i), r, port, pods)
				}
			}
		}
	}
}

// onlyAddresses reports whether no peer of a rule is a pod.
func onlyAddresses(r *policy.Rule) bool {
	return len(r.Peers) > 0 && !slices.ContainsFunc(r.Peers, func(p policy.Peer) bool { return p.Pods != nil || isNothing(&p) })
}

func (c *cluster) namedPort(p *compiled, field string, r *policy.Rule, port policy.Port, pods []*pod) {
	other := packet.Unknown // the protocol for which the name is declared
	var declared []string
	for _, pod := range pods {
		for _, n := range pod.endpoint.Ports {
			if n.Name == port.Name && (n.Proto == port.Proto || port.Proto == packet.Unknown) {
				return
			}
			if n.Name == port.Name {
				other = n.Proto
			}
			declared = append(declared, n.Name)
		}
	}
	slices.Sort(declared)
	declared = slices.Compact(declared)
	free := slices.DeleteFunc(slices.Clone(declared), func(name string) bool {
		return slices.ContainsFunc(r.Ports, func(o policy.Port) bool { return o.Name == name })
	})
	switch near := nearest(port.Name, free); {
	case other != packet.Unknown:
		c.find(p, field, writeOrRemove(r, policy.Port{Name: port.Name, Proto: other}, fmt.Sprintf("protocol: %v", other)), "%s declare port %q for %v, not for %v", names(pods), port.Name, other, port.Proto)
	case near != "":
		c.find(p, field, fmt.Sprintf("Write port: %s.", near), "no port of %s has the name %q; near it: %s", names(pods), port.Name, near)
	case len(declared) > 0:
		c.find(p, field, "", "no port of %s has the name %q; they have %s", names(pods), port.Name, strings.Join(declared, ", "))
	default:
		c.find(p, field, "", "no port of %s has the name %q, or any name", names(pods), port.Name)
	}
}

// writeOrRemove says to write a part of a port, or to remove the item if the port stands beside it.
func writeOrRemove(r *policy.Rule, port policy.Port, text string) string {
	if slices.Contains(r.Ports, port) {
		return fmt.Sprintf("Remove the item: the one with %s stands beside it.", text)
	}
	return fmt.Sprintf("Write %s.", text)
}

// servicePort finds numbers that are the port of a Service in front of the destinations,
// that the Service maps to another port, and that no destination declares.
func servicePort(c *cluster) {
	behind := slices.DeleteFunc(slices.Clone(c.Services), func(s *corev1.Service) bool {
		return len(s.Spec.Selector) > 0 || len(c.Behind[s.Namespace+"/"+s.Name]) == 0
	})
	for _, p := range c.policies {
		for d, r := range p.rules {
			pods, _ := c.destinations(p, d, r)
			for i, port := range r.Ports {
				if port.Name != "" || port.First != port.Last {
					continue
				}
				if len(pods) > 0 {
					c.servicePort(p, portField(p, d, r, i), r, port, pods)
				}
				if d == policy.Egress {
					c.backendPort(p, portField(p, d, r, i), r, port, behind)
				}
			}
		}
	}
}

// backendPort finds the port of a Service in egress to what is behind it, such as the API server,
// where that listens on another port that nothing allows.
func (c *cluster) backendPort(p *compiled, field string, r *policy.Rule, port policy.Port, services []*corev1.Service) {
	for _, s := range services {
		for _, sp := range s.Spec.Ports {
			if sp.Port != int32(port.First) || reachability.ProtocolOf(sp.Protocol) != port.Proto {
				continue
			}
			for _, b := range c.Behind.Behind(s, []corev1.ServicePort{sp}) {
				addr, err := netip.ParseAddr(b.Address)
				target := policy.Port{Proto: port.Proto, First: uint16(b.Port), Last: uint16(b.Port)}
				if err != nil || target == port || !hasAddress(r, addr, narrow) || c.allowsAddress(p, addr, target) {
					continue
				}
				c.find(p, field, fmt.Sprintf("Write port: %d.", b.Port), "%d is the port of Service %s/%s; %v, which is behind it, listens on %d", port.First, s.Namespace, s.Name, addr, b.Port)
				return
			}
		}
	}
}

// narrow reports whether a block is for a few hosts: a larger one is rarely for a certain server.
func narrow(p netip.Prefix) bool { return p.Addr().Is4() && p.Bits() >= 24 || p.Bits() >= 64 }

// hasAddress reports whether a block of a rule that satisfies f has an address.
func hasAddress(r *policy.Rule, addr netip.Addr, f func(netip.Prefix) bool) bool {
	return slices.ContainsFunc(r.Peers, func(peer policy.Peer) bool {
		return slices.ContainsFunc(peer.Blocks, func(b policy.Block) bool {
			return f(b.Prefix) && addressesOf(b).Contains(addr)
		})
	})
}

// allowsAddress reports whether p, or another policy for all of its pods, allows egress to a port of an
// address.
func (c *cluster) allowsAddress(p *compiled, addr netip.Addr, port policy.Port) bool {
	every := func(netip.Prefix) bool { return true }
	return slices.ContainsFunc(append(c.withAllOf(p), p), func(o *compiled) bool {
		return slices.ContainsFunc(o.Rules(policy.Egress), func(r policy.Rule) bool {
			return r.Action == policy.Allow && matchesPort(&r, port.Proto, port.First) && (r.AnyPeer || hasAddress(&r, addr, every))
		})
	})
}

func (c *cluster) servicePort(p *compiled, field string, r *policy.Rule, port policy.Port, pods []*pod) {
	var service *corev1.Service
	var target uint16
	for _, pod := range pods {
		for _, n := range reachability.DeclaredPorts(pod.object) {
			if n.Proto == port.Proto && n.Port == port.First {
				return
			}
		}
		for _, s := range c.servicesOf(pod) {
			for _, sp := range s.Spec.Ports {
				number, ok := targetPort(sp, pod)
				switch {
				case reachability.ProtocolOf(sp.Protocol) != port.Proto || !ok:
				case number == port.First:
					return
				case sp.Port == int32(port.First):
					service, target = s, number
				}
			}
		}
	}
	if service == nil || isDNS(port.First) && slices.ContainsFunc(pods, c.isDNSServer) {
		return
	}
	fix := writeOrRemove(r, policy.Port{Proto: port.Proto, First: target, Last: target}, fmt.Sprintf("port: %d", target))
	c.find(p, field, fix, "%d is the port of Service %s/%s; %s listen on %d",
		port.First, service.Namespace, service.Name, names(pods), target)
}

// servicesOf returns the Services that select a pod.
func (c *cluster) servicesOf(p *pod) []*corev1.Service {
	found, known := c.inFront[p]
	if known {
		return found
	}
	for _, s := range c.services[p.object.Namespace] {
		if len(s.Spec.Selector) > 0 && s.Spec.ClusterIP != corev1.ClusterIPNone &&
			labels.Set(s.Spec.Selector).AsSelectorPreValidated().Matches(p.endpoint.Labels) {
			found = append(found, s)
		}
	}
	c.inFront[p] = found
	return found
}

// targetPort returns the pod's port to which a Service maps its port.
func targetPort(sp corev1.ServicePort, p *pod) (number uint16, ok bool) {
	port, err := reachability.TargetPort(&sp)
	if err != nil {
		return 0, false
	}
	return port.On(p.endpoint.Ports)
}
