// Package gate makes pods with a readiness gate ready once policies are in force for them: their own node
// enforces what was known when they got their addresses, and the other nodes know them. It knows pods,
// and asks nothing itself: it shares the answers that package enforced gets. An agent may lie about its
// own node. It also removes the startup taint of nodes whose agent is ready.
package gate
