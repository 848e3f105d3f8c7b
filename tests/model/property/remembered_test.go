package property

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/tests/model/oracle"
)

// TestRememberedVerdictsAreCurrent: while a cluster changes, a lasting decision that is evaluated
// again whenever one of its addresses changes always holds for every packet of its class, and
// audited policies would not reverse it.
func TestRememberedVerdictsAreCurrent(t *testing.T) {
	counts := map[string]int{}
	forClusters(t, func(t *testing.T, g *gen, end oracle.Cluster) {
		end = g.audited(end)
		clusters := []oracle.Cluster{g.audited(g.cluster()), g.audited(g.cluster()), end}
		if g.OneIn(2) { // otherwise most changes are to policies
			for i := range clusters {
				clusters[i] = withPoliciesOf(clusters[i], end)
			}
		}
		histories := historiesOf(clusters...)
		followed := clusterstate.New(clusterstate.Config{NodeName: here, Features: input(end).Features})
		r := remembered{verdicts: map[packet.Class]policy.Action{}, counts: counts}
		for follow(g, followed, histories) && !t.Failed() {
			if !g.OneIn(3) {
				continue
			}
			now := nowOf(end, histories)
			r.follow(followed.Snapshot())
			questions := g.questions(now)
			if fault := r.stale(questions); fault != "" {
				t.Errorf("%s\n%s", fault, describe(now))
			}
			r.ask(questions)
		}
	})
	t.Log(counts)
	for _, what := range []string{"remembered", "kept", "evaluated again", "turned"} {
		if counts[what] == 0 {
			t.Errorf("no verdict was %s", what)
		}
	}
}

// remembered are the verdicts of a node.
type remembered struct {
	snapshot *policy.Snapshot // nil before the first
	verdicts map[packet.Class]policy.Action
	counts   map[string]int
}

// follow removes the verdicts that s may reverse.
func (r *remembered) follow(s *policy.Snapshot) {
	before := r.snapshot
	r.snapshot = s
	if before == nil {
		return
	}
	addrs, all := s.ChangedSince(before)
	maps.DeleteFunc(r.verdicts, func(c packet.Class, action policy.Action) bool {
		if !all && !slices.Contains(addrs, c.Src) && !slices.Contains(addrs, c.Dst) {
			r.counts["kept"]++
			return false
		}
		r.counts["evaluated again"]++
		d, lasting := s.EvaluateClass(c)
		if lasting && d.Action == action {
			return false
		}
		r.counts["turned"]++
		return true
	})
}

// classOf returns the class of a question that may be remembered.
func classOf(q question) (packet.Class, bool) {
	c := packet.Class{Src: q.Src.Addr(), Dst: q.Dst.Addr(), Proto: q.Proto, Port: q.Dst.Port()}
	return c, !q.toHost && (q.Proto == packet.TCP || q.Proto == packet.UDP)
}

// stale describes a packet whose verdict differs from that of its class, or returns "".
func (r *remembered) stale(questions []question) string {
	for _, q := range questions {
		c, ok := classOf(q)
		action, known := r.verdicts[c]
		if !ok || !known {
			continue
		}
		query := q.query()
		query.AwaitSource = true
		d := r.snapshot.Evaluate(query)
		if d.Action != action || d.Reason == policy.UnknownPod || d.Reason == policy.UnknownSource {
			return fmt.Sprintf("%v is remembered as %v: %v", q, action, d)
		}
		if would := ifEnforced(r.snapshot).Evaluate(query); would.Action != action && would.Reason != policy.UnknownPod {
			return fmt.Sprintf("%v is remembered as %v, audited policies would turn it: %v", q, action, would)
		}
	}
	return ""
}

// ask evaluates packets and remembers lasting verdicts.
func (r *remembered) ask(questions []question) {
	for _, q := range questions {
		query := q.query()
		query.AwaitSource = true
		d := r.snapshot.Evaluate(query)
		if c, ok := classOf(q); ok && r.snapshot.Lasting(query, d) {
			r.counts["remembered"]++
			r.verdicts[c] = d.Action
		}
	}
}
