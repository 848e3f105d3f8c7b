// Package intent tests whether policies do what their authors mean. It owns the format of
// expectations and their evaluation. It does not know where a cluster's objects come from
// or how results are printed.
package intent

import (
	"fmt"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
)

// Expectation states whether all connections from From to To are allowed or denied.
type Expectation struct {
	// File, Line and Field are its position.
	File  string
	Line  int
	Field string // "expectations[0]"

	From, To Endpoints
	Port     reachability.Port
	Allow    bool // false means that it must be denied
	Why      string
}

// String returns, for example, "ingress/deploy/gateway -> shop/deploy/web, TCP http".
func (e *Expectation) String() string {
	return fmt.Sprintf("%v -> %v, %s", &e.From, &e.To, strings.TrimSpace(e.Port.Proto.String()+" "+e.Port.String()))
}

// Endpoints are one side of an expectation: the endpoints of one name, or a group of pods.
type Endpoints struct {
	field string // its path in the file, for errors
	line  int

	name name // a pod, a workload or an address; empty for a group

	// namespace is that of the group. If it is empty, namespaces selects them.
	namespace  string
	namespaces labels.Selector
	pods       labels.Selector
	except     []name
}

// name identifies a pod, a workload, an address, or all addresses outside of the cluster.
type name struct {
	outside  bool
	text     string // as written
	workload workloads.Ref
	address  netip.Addr
}

// String returns the side in the form in which it is printed.
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
