// Package reachability reports which connections a cluster allows: one connection
// with its reasons, all of them as a matrix, and what changes between two
// clusters. It owns the names of endpoints, pods and addresses, and the rules for
// connections that no agent evaluates. What policies mean it leaves
// to packages compile and policy, the same that the agents run: it reads no
// policy itself. It does no I/O and does not know where objects come from.
package reachability
