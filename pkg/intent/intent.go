// Package intent tests what policies do against what their authors mean. It owns the
// format of expectations and their evaluation, and knows neither where the
// objects of a cluster come from nor how results are printed.
package intent

import (
	"fmt"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/pkg/reachability"
	"sigs.k8s.io/kube-network-policies/pkg/workloads"
)

// Expectation is what every connection from one of From to one of To must be.
type Expectation struct {
	// File, Line and Field are where it is written.
	File  string
	Line  int
	Field string // "expectations[0]"

	From, To Endpoints
	Port     reachability.Port
	Allow    bool // else it must be denied
	Why      string
}

// String returns, for example, "ingress/deploy/gateway -> shop/deploy/web, TCP http".
func (e *Expectation) String() string {
	return fmt.Sprintf("%v -> %v, %s", &e.From, &e.To, strings.TrimSpace(e.Port.Proto.String()+" "+e.Port.String()))
}

// Endpoints are the endpoints of one side of an expectation: those of one name, or a
// group of pods.
type Endpoints struct {
	field string // where it is written, for errors
	line  int

	name name // of a pod, a workload or an address; empty for a group

	// namespace is the one of the group, or else namespaces selects them.
	namespace  string
	namespaces labels.Selector
	pods       labels.Selector
	except     []name
}

// name is the name of a pod, of a workload, or an address.
type name struct {
	text     string // as it is written
	workload workloads.Ref
	address  netip.Addr
}

// String returns the side as it is printed.
func (e *Endpoints) String() string {
	if e.name.text != "" {
		return e.name.text
	}
	text := "pods"
	if !e.pods.Empty() {
		text += " with " + e.pods.String()
	}
	switch {
	case e.namespace != "":
		text += " of namespace " + e.namespace
	case e.namespaces.Empty():
		text += " of all namespaces"
	default:
		text += " of namespaces with " + e.namespaces.String()
	}
	for i, n := range e.except {
		if i == 0 {
			text += " except "
		} else {
			text += " and "
		}
		text += n.text
	}
	return text
}
