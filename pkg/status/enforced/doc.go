// Package enforced finds out whether the policies of a cluster are in force on all nodes, by asking the
// agents. It knows neither how policies are read nor where the answer is shown. An agent may be
// compromised: it can lie about its own node, and its answers are bounded.
package enforced
