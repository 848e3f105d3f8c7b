// Package lint finds mistakes in network policies: rules that are enforced exactly as
// written but probably not as meant. It compares policies with each other and with the
// pods, namespaces, nodes and Services of a cluster, using the compiled policies of package
// compile and the evaluation of package reachability. It is pure, without I/O or clock; the
// commands own the sources of objects, comments in files, and output formats.
package lint

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/exposure"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

// Input is the cluster to check. The objects are only read, in any order.
type Input struct {
	Features   compile.Features
	Namespaces []*corev1.Namespace
	Pods       []*corev1.Pod
	Nodes      []*corev1.Node
	PodRanges  []netip.Prefix // those of reachability.New
	CIDRGroups []*proposed.CIDRGroup
	Services   []*corev1.Service
	Behind     exposure.Backends            // of Services
	Policies   []compile.Object             // of the kinds in compile.Kinds
	Exposing   []*unstructured.Unstructured // of the kinds in exposure.Kinds
	// ServiceCIDRs are the ranges of ClusterIPs, as far as they are known.
	ServiceCIDRs []netip.Prefix
	// Workloads are those of which the labels are known, ordered.
	Workloads []workloads.Labels
	// AssumedNamespaces are those of Namespaces of which only the name is known.
	AssumedNamespaces []string
	// Partial says that the cluster may have more objects than these, because they come from
	// manifests. Findings about missing objects are then at most infos.
	Partial bool
	// Controllers says that there are custom resources, whose controllers may create more pods.
	Controllers bool
	// Written reports whether the author set a field that the object has; the API server and
	// clusterfiles add defaults. Nil means that every field was set by the author.
	Written func(o Object, field string) bool
}

// Severity is how serious a finding is.
type Severity uint8

// The severities. Info is worth knowing and often intended; Warning is a mistake unless
// there is a reason; Error is never intended.
const (
	Info Severity = iota
	Warning
	Error
)

// String returns "info", "warning" or "error".
func (s Severity) String() string { return [...]string{"info", "warning", "error"}[s] }

// MarshalText renders the severity like String.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText renders.
func (s *Severity) UnmarshalText(text []byte) error {
	for _, known := range []Severity{Info, Warning, Error} {
		if known.String() == string(text) {
			*s = known
			return nil
		}
	}
	return fmt.Errorf("%q is none of info, warning, error", text)
}

// Object names an API object.
type Object struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// String returns "Kind namespace/name", or "Kind name".
func (o Object) String() string {
	if o.Namespace == "" {
		return o.Kind + " " + o.Name
	}
	return o.Kind + " " + o.Namespace + "/" + o.Name
}

// Finding is one mistake.
type Finding struct {
	Rule     string   `json:"rule"` // the ID of one of Rules
	Severity Severity `json:"severity"`
	Object
	Field   string `json:"field,omitempty"` // path in the object, "spec.ingress[0].from[1]"
	Message string `json:"message"`         // what the object says, and its effect
	Why     string `json:"why"`             // why it is a mistake
	Fix     string `json:"fix"`             // what to write instead
}

// Check returns the findings of all rules, including those that are off by default, ordered by
// object, field and rule.
func Check(in Input) []Finding {
	c := newCluster(in)
	c.checkAll()
	slices.SortStableFunc(c.findings, Compare)
	return slices.Compact(c.findings)
}

func (c *cluster) checkAll() {
	for _, r := range Rules {
		if r.check != nil {
			c.rule = r
			r.check(c)
		}
	}
}

// Compare orders findings by object, field and rule.
func Compare(a, b Finding) int {
	return cmp.Or(
		strings.Compare(a.Namespace, b.Namespace),
		strings.Compare(a.Kind, b.Kind),
		strings.Compare(a.Name, b.Name),
		compareFields(a.Field, b.Field),
		strings.Compare(a.Rule, b.Rule),
		strings.Compare(a.Message, b.Message),
	)
}

// compareFields orders paths and compares indices as numbers: [2] before [10].
func compareFields(a, b string) int {
	for a != "" && b != "" {
		x, restA, _ := strings.Cut(a, "[")
		y, restB, _ := strings.Cut(b, "[")
		if x != y {
			return strings.Compare(x, y)
		}
		i, moreA, _ := strings.Cut(restA, "]")
		j, moreB, _ := strings.Cut(restB, "]")
		if order := cmp.Or(cmp.Compare(len(i), len(j)), strings.Compare(i, j)); order != 0 {
			return order
		}
		a, b = moreA, moreB
	}
	return cmp.Compare(len(a), len(b))
}
