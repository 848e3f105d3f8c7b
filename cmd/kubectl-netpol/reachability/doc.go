// Package reachability answers which connections a cluster allows: a single connection with
// its reasons, all connections as a matrix, and the changes between two clusters. It owns
// the names of endpoints, pods and addresses, and the rules for connections that agents do
// not evaluate. It leaves the meaning of policies to packages compile and policy, which the
// agents run too. It does no I/O and does not know where objects come from.
package reachability
