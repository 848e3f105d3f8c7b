// Package netpol tests implementations of network policies with truth tables: every
// pod to every pod, on every port and protocol. The policies are NetworkPolicy and
// those of administrators: AdminNetworkPolicy and BaselineAdminNetworkPolicy
// (v1alpha1), ClusterNetworkPolicy (v1alpha2). A Scenario is a series of changes to a
// cluster, with the complete table that must hold after each. A Runner plays it on a
// Backend, which is anything that can apply objects and try connections.
//
// The package depends on the API types alone: neither on what enforces the policies
// nor on how a connection is tried. Any provider of NetworkPolicy can import it.
package netpol
