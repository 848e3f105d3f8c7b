package enforced

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
	"sigs.k8s.io/kube-network-policies/pkg/base/printable"
	"sigs.k8s.io/kube-network-policies/pkg/status/agents"
)

// agentsAtOnce is how many agents are asked at the same time.
const agentsAtOnce = 64

// errNoAgent is the answer of a node without an agent.
var errNoAgent = errors.New("no agent runs there")

// node is a node and the answer of its agent.
type node struct {
	name   string
	answer *inforce.Answer
	at     time.Time // when it answered
	err    error
}

// round holds the answers of all nodes.
type round struct {
	started time.Time
	nodes   []node // by name
	// lowest are the lowest versions of all nodes, by kind: those that are certain, and those that
	// are in force if they were before. A kind that is not on all nodes has none.
	lowest [2]map[string]string
	latest map[string]time.Time // of inForceSince, by kind
	// uncertain are the policies that select pods which some node does not know by address. The zero
	// Policy stands for all.
	uncertain map[Policy]inforce.Uncertain

	// What follows is for candidates.
	suspects  []int               // positions of nodes that are not current
	ascending map[string][]versed // the other nodes by kind, those with the lowest versions first
}

// versed is the version of a kind that is in force on a node.
type versed struct {
	position int
	version  string
	number   bool
}

// ask asks the agents of all nodes.
func (c *Collector) ask(ctx context.Context, names []string, pods []*corev1.Pod) *round {
	r := &round{started: time.Now()}
	ofNode := make(map[string]*corev1.Pod, len(pods))
	for _, pod := range pods {
		ofNode[pod.Spec.NodeName] = pod
		names = append(names, pod.Spec.NodeName) // the informers may differ for a moment
	}
	slices.Sort(names)
	names = slices.Compact(names)
	r.nodes = make([]node, len(names))
	var group errgroup.Group
	group.SetLimit(agentsAtOnce)
	for i, name := range names {
		n, pod := &r.nodes[i], ofNode[name]
		n.name, n.err = name, errNoAgent
		if pod == nil {
			continue
		}
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, agents.Timeout)
			defer cancel()
			n.answer, n.err = c.cfg.Ask(ctx, pod)
			n.at = time.Now()
			if n.err == nil && n.answer.Node != name {
				n.err = fmt.Errorf("the agent says that it runs on node %q", printable.Text(n.answer.Node[:min(len(n.answer.Node), maxNodeName)]))
			}
			return nil
		})
	}
	_ = group.Wait() // errors are those of the nodes
	r.lowest = [2]map[string]string{r.lowestOf(false), r.lowestOf(true)}
	r.uncertain = r.allUncertain()
	c.metrics.count(r)
	return r
}

func (r *round) lowestOf(holds bool) (lowest map[string]string) {
	for i := range r.nodes {
		n := &r.nodes[i]
		if n.err != nil {
			return nil
		}
		have := n.answer.InForce(holds)
		if i == 0 {
			lowest = have
			continue
		}
		for kind, version := range lowest {
			switch {
			case inforce.Reaches(have[kind], version):
			case inforce.Reaches(version, have[kind]):
				lowest[kind] = have[kind]
			default:
				delete(lowest, kind) // the node does not have it, or it is not a number
			}
		}
	}
	return lowest
}

// allUncertain returns what the nodes say of uncertain pods. Of several nodes, the one with most counts, or
// else the first.
func (r *round) allUncertain() map[Policy]inforce.Uncertain {
	all := map[Policy]inforce.Uncertain{}
	for i := range r.nodes {
		if r.nodes[i].err != nil {
			continue
		}
		for _, u := range r.nodes[i].answer.Uncertain {
			p := Policy{Kind: u.Kind, NamespacedName: types.NamespacedName{Namespace: u.Namespace, Name: u.Name}}
			if u.Pods > all[p].Pods {
				all[p] = u
			}
		}
	}
	return all
}

// uncertainPods returns the Text of a policy that is in force but selects uncertain pods, false if it
// selects none.
func (r *round) uncertainPods(p Policy) (Text, bool) {
	u, ok := r.uncertain[p]
	if !ok {
		u, ok = r.uncertain[Policy{}]
	}
	if !ok {
		return Text{}, false
	}
	pods := "1 pod that it may select has an address"
	if u.Pods > 1 {
		pods = fmt.Sprintf("%d pods that it may select have addresses", u.Pods)
	}
	return Text{metav1.ConditionFalse, PodsNotKnownByAddress, fmt.Sprintf(
		"In force on %d of %d nodes, but %s that may be another's, such as %s: packets pass only if they are allowed for each.",
		len(r.nodes), len(r.nodes), pods, u.Example)}, true
}

// everywhere reports whether all needs are in force on all nodes. before is set if they were before.
func (r *round) everywhere(needs []Need, before bool) bool {
	lowest := r.lowest[0]
	if before {
		lowest = r.lowest[1]
	}
	return len(r.nodes) > 0 && !slices.ContainsFunc(needs, func(n Need) bool { return !inforce.Reaches(lowest[n.Kind], n.Version) })
}

// inForceSince returns when the needs, which are in force on all nodes, had come into force there at the
// latest: an agent says how long its newest version of a kind has been in force, by its own clock, and
// the needs may be older.
func (r *round) inForceSince(needs []Need) (since time.Time) {
	if r.latest == nil { // once in a round: many policies may have come into force in it
		r.latest = map[string]time.Time{}
		for i := range r.nodes {
			n := &r.nodes[i]
			for _, k := range n.answer.Kinds {
				r.latest[k.Kind] = later(r.latest[k.Kind], n.at.Add(-time.Duration(k.Seconds*float64(time.Second))))
			}
		}
	}
	for _, need := range needs {
		since = later(since, r.latest[need.Kind])
	}
	return since
}

// candidates returns the positions of the nodes where needs may not be in force. That is for rounds in
// which many policies are not: one node may be the cause for all.
func (r *round) candidates(needs []Need) []int {
	if r.ascending == nil {
		r.ascending = map[string][]versed{}
		for i := range r.nodes {
			if r.nodes[i].state() != nodeCurrent {
				r.suspects = append(r.suspects, i)
			}
		}
	}
	found := slices.Clone(r.suspects)
	for _, need := range needs {
		for _, v := range r.byVersion(need.Kind) {
			if inforce.Reaches(v.version, need.Version) {
				break
			}
			found = append(found, v.position)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// byVersion returns the nodes that are current by their version of a kind. Those that do not have the
// kind, or whose version is not a number, are first.
func (r *round) byVersion(kind string) []versed {
	if known, ok := r.ascending[kind]; ok {
		return known
	}
	var all []versed
	for i := range r.nodes {
		n := &r.nodes[i]
		if n.state() != nodeCurrent {
			continue
		}
		v := versed{position: i}
		if k := slices.IndexFunc(n.answer.Kinds, func(k inforce.Kind) bool { return k.Kind == kind }); k >= 0 {
			v.version = n.answer.Kinds[k].Version
			v.number = inforce.Reaches(v.version, v.version)
		}
		all = append(all, v)
	}
	slices.SortFunc(all, func(a, b versed) int {
		switch {
		case a.number != b.number:
			if b.number {
				return -1
			}
			return 1
		case a.version == b.version || !a.number:
			return 0
		case inforce.Reaches(a.version, b.version):
			return 1
		}
		return -1
	})
	r.ascending[kind] = all
	return all
}

// reason returns the state of the first node where the needs are not in force, nodeLate if the agent
// has just not come to them yet.
func (r *round) reason(needs []Need, before bool) string {
	for _, i := range r.candidates(needs) {
		n := &r.nodes[i]
		if _, err := n.lacks(needs, before); err == nil {
			continue
		}
		if state := n.state(); state != nodeCurrent {
			return state
		}
		break
	}
	return nodeLate
}

// lacks returns why the needs are not in force on the node, nil if they are. known is false if it does
// not say.
func (n *node) lacks(needs []Need, before bool) (known bool, err error) {
	if n.err != nil {
		return errors.Is(n.err, errNoAgent), n.err
	}
	check := n.answer.Check
	if before {
		check = n.answer.Holds
	}
	for _, need := range needs {
		if err := check(need.Kind, need.Version); err != nil {
			return true, err
		}
	}
	return true, nil
}

// describe returns the Text of needs that are not in force everywhere.
func (r *round) describe(needs []Need, before bool) Text {
	t := Text{metav1.ConditionUnknown, AgentsDoNotAnswer, ""}
	var lacking inforce.Lacking
	for _, i := range r.candidates(needs) {
		known, err := r.nodes[i].lacks(needs, before)
		if err == nil {
			continue
		}
		if known {
			t.Status, t.Reason = metav1.ConditionFalse, Pending
		}
		lacking.Add(r.nodes[i].name, err)
	}
	where := "Not known of"
	if t.Status == metav1.ConditionFalse {
		where = "Not on"
	}
	t.Message = fmt.Sprintf("In force on %d of %d nodes. %s %v.", len(r.nodes)-lacking.Nodes, len(r.nodes), where, &lacking)
	return t
}

// logSilent logs which nodes have not answered.
func (c *Collector) logSilent(ctx context.Context, r *round) {
	var silent []string
	var last error
	for i := range r.nodes {
		if err := r.nodes[i].err; err != nil {
			silent, last = append(silent, r.nodes[i].name), err
		}
	}
	if len(silent) == 0 {
		return
	}
	c.errorLog.Do(func() {
		klog.FromContext(ctx).Error(last, "Nodes have not said which policies are in force", "count", len(silent), "of", len(r.nodes), "nodes", silent[:min(len(silent), maxNamed)])
	})
}
