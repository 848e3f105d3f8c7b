// Package reachability answers who reaches whom in a cluster: one connection
// with its reasons, all of them as a matrix, and what changes between two
// clusters. It owns the names of the sides, pods and addresses, and what is true
// of connections that no agent is ever asked about. What policies mean it leaves
// to packages compile and policy, the same that the agents run: it reads no
// policy itself. It does no I/O and does not know where objects come from.
package reachability
