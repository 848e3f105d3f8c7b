// Package netpol says what a set of NetworkPolicies means, as truth tables: every
// pod to every pod, on every port and protocol. A Scenario is a series of changes
// to a cluster, with the complete table that must hold after each. A Runner plays
// it on a Backend, which is whatever can apply objects and try connections.
//
// The package knows the API and nothing else: neither what enforces the policies
// nor how a connection is tried. Any provider of NetworkPolicy can import it.
package netpol
