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
	// Supports says what the backend can show. The answer never changes.
	Supports() Support

	// Apply makes the cluster be as state says: what state does not have is removed.
	// Pods that have no address get addresses and run when Apply returns; they are
	// written into state in place of the pods that it had. Policies may come into
	// force later.
	Apply(ctx context.Context, state *State) error

	// Probe makes one attempt for each connection, at the same time as far as it
	// sees fit, and returns the outcomes in the order of connections. An error is for
	// a backend that does not work; a single attempt that cannot be made is
	// Unobservable.
	Probe(ctx context.Context, connections []Connection) ([]Outcome, error)

	// Close removes what Apply has made.
	Close() error
}

// Feature is something that a scenario may need and a backend may lack.
type Feature string

// The features.
const (
	// Services are addresses of which each has one pod behind it.
	Services Feature = "Services"
	// HostNetwork are pods that share their node's network.
	HostNetwork Feature = "host-network pods"
	// OutsideHosts are machines that are no part of the cluster.
	OutsideHosts Feature = "hosts outside the cluster"
	// FreeObjects are pods whose status, addresses included, is as the state says,
	// where a real cluster decides itself.
	FreeObjects Feature = "pods with a status at will"
	// AdminNetworkPolicies are policies of these two kinds (v1alpha1).
	AdminNetworkPolicies Feature = "AdminNetworkPolicy and BaselineAdminNetworkPolicy"
	// ClusterNetworkPolicies are policies of that kind (v1alpha2).
	ClusterNetworkPolicies Feature = "ClusterNetworkPolicy"
	// ExperimentalFields are those that the standard definitions of the
	// administrators' kinds do not have.
	ExperimentalFields Feature = "experimental fields of administrators' policies"
	// SilentDrops are denied connections that time out. Without it, denied
	// connections may also be refused.
	SilentDrops Feature = "denied connections time out"
)

// Support is what a backend can show.
type Support struct {
	Protocols []corev1.Protocol
	Families  []corev1.IPFamily
	Features  []Feature
	// Nodes is how many nodes there are.
	Nodes int
	// Immediate tells that what was applied is in force when Apply returns, so that
	// nothing is gained by a second look.
	Immediate bool
}

// missing returns what of traffic cannot be observed, in words, empty if nothing.
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

// lacks returns what scenario needs and s does not have.
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
