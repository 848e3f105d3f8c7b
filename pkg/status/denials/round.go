package denials

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/pkg/base/printable"
	"sigs.k8s.io/kube-network-policies/pkg/status/agents"
)

// round holds the answers of the agents to one round of questions.
type round struct {
	asked int
	has   func(Policy) bool // whether a policy exists

	mu       sync.Mutex
	tallies  map[Policy]*tally
	said     map[types.UID][]Policy // the policies that each agent has named
	answered map[types.UID]time.Time
	silent   []string // nodes whose agent has not answered
	err      error    // the error of one silent agent

	unknown, mostUnknown int    // unknown policies, and the most of them by one agent
	mostUnknownOn        string // the node of that agent
}

// tally is what a policy denied on all nodes.
type tally struct {
	enforced, audited denied
	fresh             bool // it has denied packets since the previous round
}

// denied is one part of a tally.
type denied struct {
	count uint64
	last  time.Time
	pairs []pair
}

// pair is a source and a destination, with the time of the last denial and the position in its
// agent's list.
type pair struct {
	text   string
	last   time.Time
	before int
}

func (t *tally) last() time.Time { return later(t.enforced.last, t.audited.last) }

// ask asks all agents about the policies that exist.
func (c *Collector) ask(ctx context.Context, all []*corev1.Pod, has func(Policy) bool) *round {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	r := &round{asked: len(all), has: has, tallies: make(map[Policy]*tally), said: make(map[types.UID][]Policy), answered: make(map[types.UID]time.Time)}
	var group errgroup.Group
	group.SetLimit(agentsAtOnce)
	for _, pod := range all {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, agents.Timeout)
			defer cancel()
			asked := time.Now()
			answer, err := c.cfg.Ask(ctx, pod)
			r.addAnswer(pod, answer, err, asked, c.answered[pod.UID])
			return nil
		})
	}
	_ = group.Wait() // errors are in the round
	return r
}

// addAnswer adds the answer of an agent that was asked at the time asked and, if not zero, previously at before.
func (r *round) addAnswer(pod *corev1.Pod, answer *flows.Denied, err error, asked, before time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.silent = append(r.silent, pod.Spec.NodeName)
		r.err = err
		return
	}
	r.answered[pod.UID] = asked
	now := time.Now()
	known := make(map[Policy]*[2]bool) // whether the agent has named it as enforced, and as audited
	unknown := 0
	for i := range answer.Policies {
		d := &answer.Policies[i]
		p := Policy{d.Kind, types.NamespacedName{Namespace: d.Namespace, Name: d.Name}}
		part := 0
		if d.Audited {
			part = 1
		}
		switch {
		case d.Count == 0 || known[p] != nil && known[p][part]:
			continue
		case known[p] == nil && !r.has(p):
			unknown++
			continue
		case known[p] == nil:
			known[p] = new([2]bool)
			r.said[pod.UID] = append(r.said[pod.UID], p)
		}
		known[p][part] = true
		r.add(p, d, now, before)
	}
	r.unknown += unknown
	if unknown > r.mostUnknown {
		r.mostUnknown, r.mostUnknownOn = unknown, pod.Spec.NodeName
	}
}

// add adds one agent's denials of a policy. Times after now are cut to now.
func (r *round) add(p Policy, d *flows.DeniedByPolicy, now, before time.Time) {
	ago := time.Duration(min(max(0, d.Ago), int64(flows.DeniedWindow/time.Second))) * time.Second
	t := r.tallies[p]
	if t == nil {
		t = &tally{}
		r.tallies[p] = t
	}
	part := &t.enforced
	if d.Audited {
		part = &t.audited
	}
	last := now.Add(-ago)
	// Agents round down to seconds, so the last packet may be up to a second older.
	t.fresh = t.fresh || last.After(before)
	part.count += min(d.Count, math.MaxUint64-part.count)
	part.last = later(part.last, last)
	for i, text := range d.Pairs[:min(len(d.Pairs), flows.MaxPairs)] {
		part.addPair(pair{printable.Text(text[:min(len(text), maxPair)]), last, i})
	}
}

// addPair keeps unique pairs, ordered by position in their agent's list, then the latest
// first.
func (d *denied) addPair(p pair) {
	if i := slices.IndexFunc(d.pairs, func(known pair) bool { return known.text == p.text }); i >= 0 {
		d.pairs[i].last, d.pairs[i].before = later(d.pairs[i].last, p.last), min(d.pairs[i].before, p.before)
	} else {
		d.pairs = append(d.pairs, p)
	}
	slices.SortStableFunc(d.pairs, func(a, b pair) int {
		return cmp.Or(cmp.Compare(a.before, b.before), b.last.Compare(a.last), strings.Compare(a.text, b.text))
	})
	d.pairs = d.pairs[:min(len(d.pairs), flows.MaxPairs)]
}

// text describes what a policy denied.
func (t *tally) text(r *round) Text {
	var parts []string
	if t.enforced.count > 0 {
		parts = append(parts, t.enforced.text("denied"))
	}
	if t.audited.count > 0 {
		parts = append(parts, t.audited.text("would have been denied"))
	}
	if len(r.silent) > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d agents have not answered.", len(r.silent), r.asked))
	}
	return Text{Message: strings.Join(parts, " "), Audited: t.enforced.count == 0}
}

func (d *denied) text(what string) string {
	packets := "packets"
	if d.count == 1 {
		packets = "packet"
	}
	latest := slices.SortedStableFunc(slices.Values(d.pairs), func(a, b pair) int { return cmp.Or(b.last.Compare(a.last), strings.Compare(a.text, b.text)) })
	var pairs []string
	for _, p := range latest {
		pairs = append(pairs, p.text)
	}
	text := fmt.Sprintf("%d %s %s within an hour, the last at %s", d.count, packets, what, d.last.UTC().Format(time.RFC3339))
	if len(pairs) > 0 {
		text += ": " + strings.Join(pairs, "; ")
	}
	return text + "."
}
