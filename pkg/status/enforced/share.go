package enforced

import (
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
	"sigs.k8s.io/kube-network-policies/pkg/base/runner"
)

// Round is what all nodes have said, once. The zero Round has no nodes, and nothing is in force there.
type Round struct{ round *round }

// Share has f called after each round of Run, which waits for it. f returns how soon it needs another
// round at the latest. Share must be called before Run.
func (c *Collector) Share(f func(Round) time.Duration) { c.share = f }

// Soon has the agents asked as soon as after a change of a policy.
func (c *Collector) Soon() { runner.Signal(c.noted) }

// shared passes a round on, and returns when the next one is due.
func (c *Collector) shared(r *round, interval time.Duration) time.Duration {
	if c.share == nil {
		return interval
	}
	return min(interval, c.share(Round{r}))
}

// After reports whether all answers were given after a time.
func (r Round) After(t time.Time) bool { return r.round != nil && !r.round.started.Before(t) }

// Nodes returns the number of nodes.
func (r Round) Nodes() int { return len(r.round.nodes) }

// Everywhere reports whether all needs are in force on all nodes.
func (r Round) Everywhere(needs ...Need) bool { return r.round.everywhere(needs, false) }

// OnNode returns nil if all needs are in force on a node, or why that is not known.
func (r Round) OnNode(name string, needs ...Need) error {
	i, found := slices.BinarySearchFunc(r.round.nodes, name, func(n node, name string) int { return strings.Compare(n.name, name) })
	if !found {
		return errNoAgent
	}
	_, err := r.round.nodes[i].lacks(needs, false)
	return err
}

// AddLacking adds the nodes other than one that lack some of the needs.
func (r Round) AddLacking(to *inforce.Lacking, but string, needs ...Need) {
	for i := range r.round.nodes {
		other := &r.round.nodes[i]
		if other.name == but {
			continue
		}
		if _, err := other.lacks(needs, false); err != nil {
			to.Add(other.name, err)
		}
	}
}
