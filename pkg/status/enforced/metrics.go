package enforced

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// The states of a node.
const (
	nodeCurrent = "current"
	nodeBehind  = "behind"    // it does not watch a kind
	nodeProblem = "problem"   // nothing is known to be in force
	nodeSilent  = "no_answer" // its agent
	nodeEmpty   = "no_agent"
	nodeLate    = "late" // of a pending policy only: its agent has not come to it yet
)

type metrics struct {
	nodes *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer, pending func(reason string) int) *metrics {
	m := &metrics{
		nodes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "netpol_enforced_nodes",
			Help: "Nodes by what their agents said last about policies in force. behind: it does not watch a kind. problem: nothing is known to be in force.",
		}, []string{"state"}),
	}
	reg.MustRegister(m.nodes)
	for _, reason := range []string{nodeBehind, nodeProblem, nodeSilent, nodeEmpty, nodeLate} {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "netpol_enforced_pending_policies",
			Help:        "Policies that have not been in force on all nodes for more than a minute, by the state of the first such node.",
			ConstLabels: prometheus.Labels{"reason": reason},
		}, func() float64 { return float64(pending(reason)) }))
	}
	return m
}

// count counts the nodes of a round by state.
func (m *metrics) count(r *round) {
	counts := map[string]int{nodeCurrent: 0, nodeBehind: 0, nodeProblem: 0, nodeSilent: 0, nodeEmpty: 0}
	for i := range r.nodes {
		counts[r.nodes[i].state()]++
	}
	for state, n := range counts {
		m.nodes.WithLabelValues(state).Set(float64(n))
	}
}

func (n *node) state() string {
	switch {
	case errors.Is(n.err, errNoAgent):
		return nodeEmpty
	case n.err != nil:
		return nodeSilent
	case n.answer.Problem != "":
		return nodeProblem
	}
	for _, k := range n.answer.Kinds {
		if k.Behind != "" {
			return nodeBehind
		}
	}
	return nodeCurrent
}
