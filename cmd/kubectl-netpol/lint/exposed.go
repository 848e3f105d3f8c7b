package lint

import (
	"cmp"
	"slices"
	"strings"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/exposure"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// exposures returns what Ingresses, routes, Services and host ports expose of the pods.
func (c *cluster) exposures() []exposure.Exposure {
	if c.exposed == nil {
		in := exposure.Input{Cluster: c.evaluator(), Nodes: c.Nodes, Services: c.Services, Ranges: c.ServiceCIDRs, Behind: c.behind(), Objects: c.Exposing}
		for _, p := range c.pods {
			in.Pods = append(in.Pods, p.object)
		}
		c.exposed = exposure.Find(&in)
	}
	return c.exposed
}

// behind returns Behind with the addresses of the pods that represent others.
func (c *cluster) behind() exposure.Backends {
	if len(c.Behind) == 0 {
		return nil
	}
	representatives := map[string]*pod{}
	for _, p := range c.pods {
		representatives[p.class()] = p
	}
	addresses := map[string]string{}
	for _, o := range c.Pods {
		p := pod{object: o, host: o.Spec.HostNetwork}
		r := representatives[p.class()]
		own := compile.Addresses(o)
		if r == nil || p.host {
			continue
		}
		for i, addr := range compile.Addresses(r.object) {
			if i < len(own) {
				addresses[own[i].String()] = addr.String()
			}
		}
	}
	all := exposure.Backends{}
	for service, backends := range c.Behind {
		all[service] = slices.Clone(backends)
		for i, b := range backends {
			all[service][i].Address = cmp.Or(addresses[b.Address], b.Address)
		}
	}
	return all
}

// backendDenied finds Ingresses, routes and Services whose clients are denied or, where these are
// not known, whose backends let no pod in.
func backendDenied(c *cluster) {
	pods := map[string]*pod{}
	for _, p := range c.pods {
		pods[p.String()] = p
	}
	for _, x := range c.exposures() {
		backends := named(pods, x.Pods)
		o := Object{x.Kind, x.Namespace, x.Name}
		behind := strings.Join(x.Pods[:min(len(x.Pods), 3)], ", ")
		switch {
		case len(x.Pods) == 0:
			c.findAt(o, x.Field, "Add it to the input.", "not checked, as it is not known what is behind service %s: %s", x.Service, x.Why).Severity = Info
		case x.HostPort():
			// Pods of the cluster use host ports, too: it is often meant that no client outside does.
		case x.Outside() && x.LetIn == exposure.None && x.Nodes != exposure.All:
			c.findAt(o, x.Field, "", "no address outside reaches %s at %s, by %s", behind, x.Port, strings.Join(x.Hosts, ", "))
		case x.Outside():
		case x.LetIn == exposure.None:
			fix := ""
			if len(backends) == 0 {
				fix = "Allow egress from the pods of the controller to this port."
			}
			c.findAt(o, x.Field, fix, "the controller's pods, %s, do not reach %s at %s", strings.Join(x.Controller, ", "), behind, x.Port)
		case x.LetIn == exposure.Unknown && len(backends) > 0 && !slices.ContainsFunc(backends, func(p *pod) bool { return c.mayLetIn(p, &x) }):
			c.findAt(o, x.Field, "", "%s isolates ingress of %s, and no rule allows %s", c.isolating(backends[0], policy.Ingress)[0].ref(), names(backends), x.Port)
		}
	}
}

// named returns those of the pods that have one of the names.
func named(pods map[string]*pod, names []string) (found []*pod) {
	for _, name := range names {
		if p := pods[name]; p != nil {
			found = append(found, p)
		}
	}
	return found
}

// nodeSource finds Services whose clients policies treat differently if they enter through another
// node than that of the pod.
func nodeSource(c *cluster) {
	for _, x := range c.exposures() {
		o := Object{x.Kind, x.Namespace, x.Name}
		by := strings.Join(x.Hosts, ", ")
		switch {
		case len(x.Pods) == 0 || x.Nodes == "" || x.LetIn == exposure.None && x.Nodes != exposure.All:
		case x.Nodes == exposure.Unknown && x.LetIn == exposure.Some:
			c.findAt(o, x.Field, "", "policies let only some addresses in at %s, by %s, and clients may have the address of a node there", x.Port, by).Severity = Info
		case x.Nodes == exposure.Unknown || x.Nodes == x.LetIn && x.LetIn == exposure.All:
		case x.Nodes == exposure.All:
			c.findAt(o, x.Field, "", "policies let only some addresses in at %s, by %s, but every client that enters through another node", x.Port, by)
		default:
			c.findAt(o, x.Field, "Set externalTrafficPolicy: Local, or allow the addresses of the nodes.", "policies let addresses outside in at %s, by %s, but not all clients that enter through another node", x.Port, by)
		}
	}
}

// mayLetIn reports whether some pod or address may reach the exposed port of p.
func (c *cluster) mayLetIn(p *pod, x *exposure.Exposure) bool {
	number, ok := x.Target.On(p.endpoint.Ports)
	if !ok {
		return true // no connection to the port is made, whatever policies say
	}
	isolating := c.isolating(p, policy.Ingress)
	if p.host || len(isolating) == 0 {
		return true
	}
	admins := slices.ContainsFunc(c.admins, func(o *compiled) bool {
		return o.Subject != nil && len(o.Rules(policy.Ingress)) > 0 && o.Subject.Selects(&p.endpoint)
	})
	return admins || slices.ContainsFunc(isolating, func(o *compiled) bool {
		return slices.ContainsFunc(o.Rules(policy.Ingress), func(r policy.Rule) bool {
			named := slices.ContainsFunc(portsOn(&r, p), func(n policy.NamedPort) bool { return n.Name != "" && n.Port == number && n.Proto == x.Target.Proto })
			return named || matchesPort(&r, x.Target.Proto, number)
		})
	})
}
