package netpol

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Backend is a cluster on which scenarios are played. A Runner calls it from one goroutine,
// except that Apply and Probe may run concurrently.
type Backend interface {
	// Supports returns what the backend can show. The result never changes.
	Supports() Support

	// Apply makes the cluster match state and removes everything else that it has applied.
	// When it returns, pods that had no address have one and run; they replace the pods in
	// state. A pod that does not run, see IsUp, is only an object. Policies may become effective
	// later. An error that is ErrRefused means that this cluster cannot have such objects.
	Apply(ctx context.Context, state *State) error

	// Probe makes one attempt for each connection, concurrently if it likes, and returns the
	// outcomes in the order of connections. An error means that the backend does not work; a
	// single attempt that cannot be made is Unobservable.
	Probe(ctx context.Context, connections []Connection) ([]Outcome, error)

	// Close removes what Apply created.
	Close() error
}

// ErrRefused is the error of Apply for objects that the cluster refuses, such as a policy that its
// API server finds invalid.
var ErrRefused = errors.New("refused")

// Described is a Backend that can say what it runs on, for records of results. It is asked after the
// scenarios.
type Described interface {
	Environment(context.Context) (Environment, error)
}

// Environment is what a Backend runs on.
type Environment struct {
	Kubernetes string   `json:"kubernetes,omitempty"` // the API server's version, such as v1.37.1
	Kernels    []string `json:"kernels,omitempty"`    // versions of the nodes' kernels
	Systems    []string `json:"systems,omitempty"`    // of the nodes
	// PodSubnets is the largest number of subnets, /24 or /64, in which the pods of a node had
	// addresses of one family.
	PodSubnets int    `json:"podSubnets,omitempty"`
	Scale      *Scale `json:"scale,omitempty"`
	// Retries counts what failed for reasons other than policies and was repeated: changes of the
	// cluster, and commands in pods.
	Retries int `json:"retries,omitempty"`
}

// Scale is what a cluster had to deal with beside the scenarios.
type Scale struct {
	Pods             int     `json:"pods"`
	Namespaces       int     `json:"namespaces"`
	Policies         int     `json:"policies"`
	Changes          int     `json:"changes"` // that were made of these pods and policies
	ChangesPerSecond float64 `json:"changesPerSecond"`
}

// String returns, for example, "1000 pods and 500 policies in 20 namespaces, 49.6 changes/s".
func (s Scale) String() string {
	return fmt.Sprintf("%d pods and %d policies in %d namespaces, %.1f changes/s", s.Pods, s.Policies, s.Namespaces, s.ChangesPerSecond)
}

// Feature is something that a scenario may need and that a backend may lack.
type Feature string

// The features.
const (
	// Services have one pod each.
	Services Feature = "Services"
	// NodePorts lead to one pod each, which is on their node.
	NodePorts Feature = "NodePorts"
	// LoadBalancers are addresses that lead to one pod each, for clients in the cluster.
	LoadBalancers Feature = "load balancers"
	// HostNetwork are pods in the network namespace of their node.
	HostNetwork Feature = "host-network pods"
	// OutsideHosts are hosts outside the cluster.
	OutsideHosts Feature = "hosts outside the cluster"
	// AdminNetworkPolicies are the two kinds of v1alpha1.
	AdminNetworkPolicies Feature = "AdminNetworkPolicy and BaselineAdminNetworkPolicy"
	// ClusterNetworkPolicies is the kind of v1beta1.
	ClusterNetworkPolicies Feature = "ClusterNetworkPolicy"
	// ExperimentalFields are the fields of the administrators' kinds that exist only in the
	// experimental channel.
	ExperimentalFields Feature = "experimental fields of administrators' policies"
	// SilentDrops means that denied connections always time out. Without it they may also be
	// refused.
	SilentDrops Feature = "denied connections time out"
	// CutsEstablished means that established connections end when a change denies them. Without
	// it they may also go on, as the API leaves that open.
	CutsEstablished Feature = "denied connections end if they are established"
)

// Support is what a backend can show.
type Support struct {
	Protocols []corev1.Protocol
	Families  []corev1.IPFamily
	Features  []Feature
	// Nodes is the number of nodes.
	Nodes int
	// Immediate means that changes are effective when Apply returns, so that no attempt is
	// repeated.
	Immediate bool
}

// missing names what the backend lacks to observe traffic, or returns "".
func (s Support) missing(t Traffic) string {
	switch {
	case !slices.Contains(s.Protocols, t.Protocol):
		return string(t.Protocol)
	case !slices.Contains(s.Families, t.Family):
		return string(t.Family)
	case t.Via != Direct && !slices.Contains(s.Features, viaFeatures[t.Via]):
		return string(viaFeatures[t.Via])
	}
	return ""
}

// lacks names what scenario needs and the backend does not support.
func (s Support) lacks(scenario Scenario) []string {
	var lacks []string
	for _, feature := range scenario.needs() {
		if !slices.Contains(s.Features, feature) {
			lacks = append(lacks, string(feature))
		}
	}
	if nodes := scenario.Model.withDefaults().Nodes; nodes > s.Nodes {
		lacks = append(lacks, fmt.Sprintf("%d nodes", nodes))
	}
	return lacks
}
