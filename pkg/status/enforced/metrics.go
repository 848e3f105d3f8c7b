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
)

type metrics struct {
	nodes   *prometheus.GaugeVec
	latency prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer, pending func() int) *metrics {
	m := &metrics{
		nodes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "netpol_enforced_nodes",
			Help: "Nodes by what their agents said last about policies in force. behind: it does not watch a kind. problem: nothing is known to be in force.",
		}, []string{"state"}),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "netpol_enforced_latency_seconds",
			Help:    "Time from a change of a policy until the status writer knew that it is in force on all nodes. It asks a second after the change.",
			Buckets: []float64{1, 1.5, 2, 3, 5, 10, 20, 30, 60, 120, 300, 600},
		}),
	}
	reg.MustRegister(m.nodes, m.latency, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "netpol_enforced_pending_policies",
		Help: "Policies that have not been in force on all nodes for more than a minute.",
	}, func() float64 { return float64(pending()) }))
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
