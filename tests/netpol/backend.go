package netpol

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Backend is a cluster that scenarios can be played on. A Runner calls it from one
// goroutine, except that Apply and Probe may run at the same time.
type Backend interface {
	// Supports returns what the backend can show. It always returns the same.
	Supports() Support

	// Apply makes the cluster match state and removes what state does not have. Pods
	// without an address get addresses and run when Apply returns; they replace the
	// pods in state. Policies may become effective later.
	Apply(ctx context.Context, state *State) error

	// Probe makes one attempt for each connection, concurrently if it likes, and
	// returns the outcomes in the order of connections. An error means that the
	// backend does not work; a single attempt that cannot be made is Unobservable.
	Probe(ctx context.Context, connections []Connection) ([]Outcome, error)

	// Close removes what Apply created.
	Close() error
}

// Feature is something that a scenario may need and a backend may lack.
type Feature string

// The features.
const (
	// Services have one pod each.
	Services Feature = "Services"
	// HostNetwork are pods in the network namespace of their node.
	HostNetwork Feature = "host-network pods"
	// OutsideHosts are hosts that are not part of the cluster.
	OutsideHosts Feature = "hosts outside the cluster"
	// FreeObjects are pods with an arbitrary status, addresses included. In a real
	// cluster kubelets write it.
	FreeObjects Feature = "pods with an arbitrary status"
	// AdminNetworkPolicies are policies of these two kinds (v1alpha1).
	AdminNetworkPolicies Feature = "AdminNetworkPolicy and BaselineAdminNetworkPolicy"
	// ClusterNetworkPolicies are policies of that kind (v1alpha2).
	ClusterNetworkPolicies Feature = "ClusterNetworkPolicy"
	// ExperimentalFields are the fields of the administrators' kinds that only the
	// experimental channel has.
	ExperimentalFields Feature = "experimental fields of administrators' policies"
	// SilentDrops means that denied connections time out. Without it they may also be
	// refused.
	SilentDrops Feature = "denied connections time out"
)

// Support is what a backend can show.
type Support struct {
	Protocols []corev1.Protocol
	Families  []corev1.IPFamily
	Features  []Feature
	// Nodes is how many nodes there are.
	Nodes int
	// Immediate means that changes are effective when Apply returns, so that nothing
	// is tried again.
	Immediate bool
}

// missing names what is needed to observe traffic and not supported, empty if nothing.
func (s Support) missing(t Traffic) string {
	switch {
	case !slices.Contains(s.Protocols, t.Protocol):
		return string(t.Protocol)
	case !slices.Contains(s.Families, t.Family):
		return string(t.Family)
	case t.Via == Service && !slices.Contains(s.Features, Services):
		return string(Services)
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
