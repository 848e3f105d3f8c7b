// Package intent tests whether policies do what their authors mean. It owns the format of
// expectations and their evaluation. It does not know where a cluster's objects come from
// or how results are printed.
package intent

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
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

	name string // see Names; empty for a group

	// namespace is that of the group. If it is empty, namespaces selects them.
	namespace  string
	namespaces labels.Selector
	pods       labels.Selector
	except     []string // names of pods
}

// String returns the side in the form in which it is printed.
func (e *Endpoints) String() string {
	if e.name != "" {
		return e.name
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
	if len(e.except) > 0 {
		text += " except " + strings.Join(e.except, " and ")
	}
	return text
}
