// Package netpol tests implementations of network policies with truth tables: every pod to
// every pod, on every port and protocol. It covers NetworkPolicy and the administrators'
// kinds: AdminNetworkPolicy and BaselineAdminNetworkPolicy (v1alpha1), and
// ClusterNetworkPolicy (v1beta1). A Scenario is a series of changes to a cluster, with the
// complete table that must hold after each. A Runner plays it on a Backend, which is
// anything that can apply objects and try connections.
//
// The package depends only on the API types, not on what enforces policies or how
// connections are tried, so any provider of NetworkPolicy can import it.
package netpol
