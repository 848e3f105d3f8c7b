// Package netpol says what a set of policies means, as truth tables: every pod to
// every pod, on every port and protocol. The policies are NetworkPolicy and those of
// administrators: AdminNetworkPolicy and BaselineAdminNetworkPolicy (v1alpha1),
// ClusterNetworkPolicy (v1alpha2). A Scenario is a series of changes
// to a cluster, with the complete table that must hold after each. A Runner plays
// it on a Backend, which is whatever can apply objects and try connections.
//
// The package knows the API and nothing else: neither what enforces the policies
// nor how a connection is tried. Any provider of NetworkPolicy can import it.
package netpol
