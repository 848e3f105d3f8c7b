package lint

import (
	"slices"
	"strings"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/tool/exposure"
)

// backendDenied finds Ingresses and routes whose controller's pods are denied or, where these
// are not known, whose backends let no pod in.
func backendDenied(c *cluster) {
	if len(c.Exposing) == 0 {
		return
	}
	in := exposure.Input{Cluster: c.evaluator(), Services: c.Services, Objects: c.Exposing}
	pods := map[string]*pod{}
	for _, p := range c.pods {
		in.Pods = append(in.Pods, p.object)
		pods[p.String()] = p
	}
	for _, x := range exposure.Find(&in) {
		var backends []*pod
		for _, name := range x.Pods {
			backends = append(backends, pods[name])
		}
		o := Object{x.Kind, x.Namespace, x.Name}
		switch {
		case x.LetIn == exposure.None:
			c.findAt(o, x.Field, "", "the controller's pods, %s, do not reach %s at %s", strings.Join(x.Controller, ", "), names(backends), x.Port)
		case x.LetIn == exposure.Unknown && !slices.ContainsFunc(backends, func(p *pod) bool { return c.mayLetIn(p, &x) }):
			c.findAt(o, x.Field, "", "%s isolates ingress of %s, and no rule allows %s", c.isolating(backends[0], policy.Ingress)[0].ref(), names(backends), x.Port)
		}
	}
}

// mayLetIn reports whether some pod or address may reach the exposed port of p.
func (c *cluster) mayLetIn(p *pod, x *exposure.Exposure) bool {
	number := x.Target.Number
	if x.Target.Name != "" {
		i := slices.IndexFunc(p.endpoint.Ports, func(n policy.NamedPort) bool { return n.Name == x.Target.Name && n.Proto == x.Target.Proto })
		if i < 0 {
			return true // no connection to the port is made, whatever policies say
		}
		number = p.endpoint.Ports[i].Port
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
