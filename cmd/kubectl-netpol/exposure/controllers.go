package exposure

import (
	"fmt"
	"strings"
)

// podSelector selects pods by labels, of all namespaces if it names none.
type podSelector struct {
	namespace string
	labels    map[string]string
}

// wellKnown are the labels that the charts and the manifests of controllers give the pods
// that send requests to backends, by the controller in classes.
var wellKnown = map[string]map[string]string{
	"k8s.io/ingress-nginx":                 {"app.kubernetes.io/name": "ingress-nginx", "app.kubernetes.io/component": "controller"},
	"nginx.org/ingress-controller":         {"app.kubernetes.io/name": "nginx-ingress"},
	"traefik.io/ingress-controller":        {"app.kubernetes.io/name": "traefik"},
	"traefik.io/gateway-controller":        {"app.kubernetes.io/name": "traefik"},
	"haproxy.org/ingress-controller":       {"app.kubernetes.io/name": "kubernetes-ingress"},
	"haproxy-ingress.github.io/controller": {"app.kubernetes.io/name": "haproxy-ingress"},
	"ingress-controllers.konghq.com/kong":  {"app.kubernetes.io/name": "kong", "app.kubernetes.io/component": "app"},
	"konghq.com/kic-gateway-controller":    {"app.kubernetes.io/name": "kong", "app.kubernetes.io/component": "app"},
	"istio.io/ingress-controller":          {"istio": "ingressgateway"},
	openShiftRouter:                        {"ingresscontroller.operator.openshift.io/deployment-ingresscontroller": "default"},
}

// openShiftRouter makes Routes of Ingresses, too.
const openShiftRouter = "openshift.io/ingress-to-route"

// The labels of pods that a controller creates for one Gateway: those of all that follow
// GEP-1762, and those of Envoy Gateway.
const (
	labelGatewayName    = "gateway.networking.k8s.io/gateway-name"
	labelEnvoyGateway   = "gateway.envoyproxy.io/owning-gateway-name"
	labelEnvoyGatewayNS = "gateway.envoyproxy.io/owning-gateway-namespace"
	defaultClass        = "ingressclass.kubernetes.io/is-default-class"
	formerClass         = "kubernetes.io/ingress.class"
	gatewayAPI          = "gateway.networking.k8s.io"
	ingressAPI          = "networking.k8s.io"
)

// podsOf returns the selectors of a controller's pods, none if they are not known.
func podsOf(controller string) []podSelector {
	for name, labels := range wellKnown {
		if controller == name || strings.HasPrefix(controller, name+"/") {
			return []podSelector{{"", labels}}
		}
	}
	return nil
}

// classes are the classes of Ingresses and Gateways by name.
type classes struct {
	ingress, gateway map[string]string // controllers
	standard         string            // the class of Ingresses that name none
	gateways         map[ref]string    // the classes of Gateways
}

// ofIngress sets the controller of an entry by its class.
func (c *classes) ofIngress(e *entry, class string) {
	if class == "" {
		class = c.standard
	}
	controller, known := c.ingress[class]
	switch {
	case class == "":
		e.unknown = "it names no class, and no IngressClass in the input is the default"
	case !known:
		e.unknown = fmt.Sprintf("no IngressClass %s in the input", class)
	default:
		e.controlledBy(controller, podsOf(controller))
	}
}

// ofGateway sets the controller of an entry by its Gateway.
func (c *classes) ofGateway(e *entry, gateway ref) {
	pods := []podSelector{
		{gateway.namespace, map[string]string{labelGatewayName: gateway.name}},
		{"", map[string]string{labelEnvoyGateway: gateway.name, labelEnvoyGatewayNS: gateway.namespace}},
	}
	class, known := c.gateways[gateway]
	if !known {
		e.controlledBy("Gateway "+gateway.String(), pods)
		return
	}
	controller := c.gateway[class]
	if controller == "" {
		controller = "Gateway " + gateway.String()
	}
	e.controlledBy(controller, append(pods, podsOf(controller)...))
}

// controlledBy sets the controller of an entry.
func (e *entry) controlledBy(name string, pods []podSelector) {
	e.controllerName, e.controller = name, pods
	if len(pods) == 0 {
		e.unknown = "the labels of the pods of " + name + " are not known"
	}
}
