package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
)

// serviceChange is a port of a Service that clients no longer reach, or newly do, because something
// else is behind it.
type serviceChange struct {
	Change  string   `json:"change"`
	Service string   `json:"service"` // "namespace/name"
	Port    string   `json:"port"`    // of the Service, "TCP 443"
	Before  string   `json:"before"`  // what was behind it
	After   string   `json:"after"`
	From    []string `json:"from"` // workloads
}

// behindPort is what is behind a port of a Service in a cluster.
type behindPort struct {
	reachability.Side
	finder *sideFinder
}

func (b *behindPort) String() string {
	var ports []string
	for _, p := range b.Ports {
		ports = append(ports, strings.TrimSpace(p.Proto.String()+" "+p.String()))
	}
	if len(b.Members) == 0 {
		return "nothing"
	}
	return b.finder.memberNames(&b.Side) + " at " + strings.Join(ports, ", ")
}

// serviceChanges compares which workloads reach the Services that both finders know, and behind
// which there is something else.
func (d *diffOptions) serviceChanges(before, after *sideFinder, family reachability.Family) []serviceChange {
	var changes []serviceChange
	for _, s := range after.list {
		old := before.named(s.Namespace, s.Name)
		if old == nil || !servesOthers(before, after, old, s) {
			continue
		}
		for _, p := range s.Spec.Ports {
			i := slices.IndexFunc(old.Spec.Ports, func(o corev1.ServicePort) bool { return o.Port == p.Port && o.Protocol == p.Protocol })
			if i < 0 || !d.comparesPort(&p) {
				continue
			}
			a, b := before.behindPort(old, old.Spec.Ports[i]), after.behindPort(s, p)
			if a.String() == b.String() {
				continue
			}
			known := serviceChange{Service: s.Namespace + "/" + s.Name, Port: fmt.Sprintf("%s %d", protocolOf(&p), p.Port), Before: a.String(), After: b.String()}
			changes = append(changes, d.reachedOnly(known, &a, &b, s.Namespace, family)...)
		}
	}
	return changes
}

// servesOthers reports whether something else may be behind a Service.
func servesOthers(before, after *sideFinder, old, s *corev1.Service) bool {
	name := s.Namespace + "/" + s.Name
	same := apiequality.Semantic.DeepEqual(old.Spec.Selector, s.Spec.Selector) && apiequality.Semantic.DeepEqual(old.Spec.Ports, s.Spec.Ports)
	return !same || len(s.Spec.Selector) == 0 && !slices.Equal(before.backends[name], after.backends[name])
}

// behindPort returns what is behind a port of a Service, no members if that is nothing.
func (f *sideFinder) behindPort(s *corev1.Service, p corev1.ServicePort) behindPort {
	side, err := f.behindPorts(s, []corev1.ServicePort{p})
	if err != nil {
		side.Members = nil
	}
	return behindPort{side, f}
}

// comparesPort reports whether --port and --protocol select a port of a Service, by its own or by its
// target port.
func (d *diffOptions) comparesPort(p *corev1.ServicePort) bool {
	protocol := d.traffic.protocol
	if d.traffic.port != "" {
		protocol = cmp.Or(protocol, string(corev1.ProtocolTCP))
	}
	return (protocol == "" || strings.EqualFold(protocol, protocolOf(p))) &&
		(d.traffic.port == "" || slices.Contains([]string{p.Name, fmt.Sprint(p.Port), p.TargetPort.String()}, d.traffic.port))
}

// reachedOnly returns the changes of the workloads that reach only one of two sides whole.
func (d *diffOptions) reachedOnly(known serviceChange, before, after *behindPort, namespace string, family reachability.Family) []serviceChange {
	namespaces := d.namespaces()
	if d.namespace == namespace {
		namespaces = nil // all clients of a Service of the namespace
	}
	was, is := before.reaching(family, namespaces), after.reaching(family, namespaces)
	only := func(some, others []string) []string {
		return slices.DeleteFunc(slices.Clone(some), func(name string) bool { return slices.Contains(others, name) })
	}
	var changes []serviceChange
	for _, c := range []serviceChange{{Change: "no longer reached", From: only(was, is)}, {Change: "newly reached", From: only(is, was)}} {
		if len(c.From) > 0 {
			known.Change, known.From = c.Change, c.From
			changes = append(changes, known)
		}
	}
	return changes
}

// reaching returns the workloads that reach all members of b.
func (b *behindPort) reaching(family reachability.Family, namespaces []string) []string {
	if len(b.Members) == 0 {
		return nil
	}
	from := b.finder.cluster.Sides(b.finder.cluster.Pods(family, namespaces...), ofWorkload)
	o := b.finder.cluster.Overview(from, []reachability.Side{b.Side}, reachability.Port{}, family)
	var names []string
	for i := range from {
		if !o.Every(i, 0).Empty() {
			names = append(names, from[i].String())
		}
	}
	return names
}

// serviceChangeLines returns the lines of changes, each with its prefix.
func serviceChangeLines(changes []serviceChange, prefix string) string {
	var out strings.Builder
	for _, c := range changes {
		fmt.Fprintf(&out, "%s%s: %s -> service %s, %s (before %s, now %s)\n", prefix, c.Change, shorten(c.From), c.Service, c.Port, c.Before, c.After)
	}
	return out.String()
}
