package enforced

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
	"sigs.k8s.io/kube-network-policies/pkg/base/runner"
	"sigs.k8s.io/kube-network-policies/pkg/status/agents"
)

const (
	// askDelay is how soon after a change agents are asked: it is in force by then on most nodes.
	askDelay = time.Second
	// patience is how long a change may not be in force on a node before this is reported, and how
	// long one that was in force. It is also how long pods have to be certain before a policy is
	// reported as in force again: addresses are handed from one pod to the next.
	patience = time.Minute
	// lateInterval is how often agents are asked while changes are late, and calmInterval while all
	// are in force.
	lateInterval = 10 * time.Second
	calmInterval = time.Minute
	// againRate and againBurst bound how often a policy gets another Text for a revision after that was
	// in force: a node that comes and goes concerns all policies, and each Text is a write that every
	// agent receives. A minute's Texts at againRate are a fifth of what the writer writes in a minute.
	againRate  = rate.Limit(60.0 / 60)
	againBurst = 300
	// pauseFactor is how long the pause after a round is at least, as a multiple of the round. It is
	// calmInterval at most: agents that answer late must not delay what others say even longer.
	pauseFactor = 4
)

// The reasons of a Text.
const (
	EnforcedOnAllNodes = "EnforcedOnAllNodes"
	Pending            = "Pending"
	AgentsDoNotAnswer  = "AgentsDoNotAnswer"
	// PodsNotKnownByAddress means that the policy is in force and selects pods whose addresses may be
	// those of others.
	PodsNotKnownByAddress = "PodsNotKnownByAddress"

	maxNamed    = 3 // nodes that a message of the log names
	maxNodeName = 253
)

// Config configures a Collector.
type Config = agents.Config[inforce.Answer]

// Policy identifies a policy.
type Policy struct {
	Kind string
	types.NamespacedName
}

// Revision is a policy as it is to be enforced.
type Revision struct {
	UID        types.UID
	Generation int64
	// Audited is set if the policy is evaluated and not enforced.
	Audited bool
}

// Need is a resource version of a kind that has to be in force.
type Need struct{ Kind, Version string }

// Text says whether a policy is in force.
type Text struct {
	Status  metav1.ConditionStatus
	Reason  string
	Message string
}

// followed is a policy that is followed.
type followed struct {
	Revision
	needs   []Need
	since   time.Time // when the revision was noted
	timed   bool      // that is when it changed
	all     bool      // it is in force on all nodes
	late    time.Time // since when it is not, zero if all
	reason  string    // why not, of the last round: a state of a node
	unsure  time.Time // when pods that it selects were uncertain last
	report  Text      // zero while it is not to be shown
	first   bool      // it changed while it was followed, and has not ceased to be in force since
	free    bool      // report needs no budget to be shown
	granted bool      // it is within the budget
	waits   time.Time // since when report waits to be shown, zero if it does not
}

// Collector asks the agents. Its methods may be called from any goroutine.
type Collector struct {
	cfg      Config
	metrics  *metrics
	errorLog rate.Sometimes
	noted    chan struct{} // signals a new revision
	again    *rate.Limiter
	share    func(Round) time.Duration // nil unless rounds are shared

	mu       sync.Mutex
	policies map[Policy]*followed
}

// New returns a Collector. It starts nothing.
func New(cfg Config) (*Collector, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("enforced config: %w", err)
	}
	c := &Collector{
		cfg:      cfg,
		errorLog: rate.Sometimes{First: 1, Interval: 10 * time.Minute},
		noted:    make(chan struct{}, 1),
		again:    rate.NewLimiter(againRate, againBurst),
		policies: make(map[Policy]*followed),
	}
	c.metrics = newMetrics(cfg.Registerer, c.pending)
	return c, nil
}

// Begin forgets all policies. It is called before policies are noted for the next Run.
func (c *Collector) Begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.policies = make(map[Policy]*followed)
}

// Note follows a revision of a policy, which is in force where all needs are. fresh is set if a policy
// that is not followed has just been made. Note ignores a revision that is followed already: later
// versions, such as those of its status, change nothing.
func (c *Collector) Note(p Policy, r Revision, fresh bool, needs ...Need) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.policies[p]
	if t != nil && t.Revision == r {
		return
	}
	now := time.Now()
	timed := fresh || t != nil
	c.policies[p] = &followed{Revision: r, needs: needs, since: now, timed: timed, first: timed, late: now, reason: nodeLate}
	runner.Signal(c.noted)
}

// Forget ends following a policy.
func (c *Collector) Forget(p Policy) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.policies, p)
}

// ForgetKind ends following the policies of a kind.
func (c *Collector) ForgetKind(kind string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := range c.policies {
		if p.Kind == kind {
			delete(c.policies, p)
		}
	}
}

// Of returns whether a revision is in force. It reports false while that is not known, or not for long
// enough to be shown. Run calls changed once there is another answer.
func (c *Collector) Of(p Policy, r Revision) (Text, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.policies[p]
	if t == nil || t.Revision != r || t.report == (Text{}) {
		return Text{}, false
	}
	return t.report, true
}

// MayShow reports whether the Text of a revision may be shown, again if another one is shown for the same
// revision. If not, Run calls changed when it may. The results of a change may always be shown. What
// nodes cause later is within a budget, in which a Text that takes back a true one has priority. A true
// one has to be so by the newest answers.
func (c *Collector) MayShow(p Policy, r Revision, again bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.policies[p]
	if t == nil || t.Revision != r || t.report == (Text{}) || !t.waits.IsZero() {
		return false
	}
	t.free = t.first || !again
	if !t.doubtful() && (t.free || t.granted || !c.behindOthers(t) && c.again.Allow()) {
		t.granted = true
		return true
	}
	t.waits = time.Now()
	return false
}

// isTrue reports whether the report says that the policy is in force.
func (t *followed) isTrue() bool { return t.report.Status == metav1.ConditionTrue }

// doubtful reports whether the report is true and the last answers differ.
func (t *followed) doubtful() bool { return t.isTrue() && !t.late.IsZero() }

// behindOthers reports whether a policy whose report is true has to wait because another one waits.
func (c *Collector) behindOthers(t *followed) bool {
	if !t.isTrue() {
		return false
	}
	for _, other := range c.policies {
		if !other.waits.IsZero() {
			return true
		}
	}
	return false
}

// showWaiting lets waiting reports be shown: those that are not true first, then those that wait longest. It
// returns them, and whether the budget is too small for others.
func (c *Collector) showWaiting() (granted []Policy, others bool) {
	var waiting []Policy
	for p, t := range c.policies {
		if !t.waits.IsZero() && !t.doubtful() {
			waiting = append(waiting, p)
		}
	}
	slices.SortFunc(waiting, c.byUrgency)
	for _, p := range waiting {
		t := c.policies[p]
		if t.free || t.granted || c.again.Allow() {
			t.granted, t.waits = true, time.Time{}
			granted = append(granted, p)
		} else {
			others = true
		}
	}
	return granted, others
}

// byUrgency orders policies whose report is not true first, then those that wait longest.
func (c *Collector) byUrgency(a, b Policy) int {
	x, y := c.policies[a], c.policies[b]
	if x.isTrue() != y.isTrue() {
		if x.isTrue() {
			return 1
		}
		return -1
	}
	return cmp.Or(x.waits.Compare(y.waits), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.String(), b.String()))
}

// pending returns how many policies have not been in force everywhere for longer than patience, for a
// reason.
func (c *Collector) pending(reason string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.policies {
		if !t.late.IsZero() && time.Since(t.late) >= patience && t.reason == reason {
			n++
		}
	}
	return n
}

// Run asks the agents until ctx ends, and calls changed for each policy whose Text has changed.
func (c *Collector) Run(ctx context.Context, changed func(Policy)) {
	ctx = klog.NewContext(ctx, klog.LoggerWithName(klog.FromContext(ctx), "enforced"))
	defer c.metrics.nodes.Reset()
	pods, nodes := agents.NewPods(c.cfg.Pods, c.cfg.Agents), agents.NewNodes(c.cfg.Nodes, stripNode)
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(func() { pods.RunWithContext(ctx) })
	following.Go(func() { nodes.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), pods.HasSynced, nodes.HasSynced) {
		return
	}
	due, earliest := time.Now(), time.Time{} // of the next round
	for {
		next := time.NewTimer(time.Until(due))
		select {
		case <-ctx.Done():
			return
		case <-c.noted:
			if soon := later(time.Now().Add(askDelay), earliest); soon.Before(due) {
				due = soon
			}
			continue
		case <-next.C:
		}
		started := time.Now()
		r := c.ask(ctx, nodes.GetStore().ListKeys(), agents.Running(pods))
		if ctx.Err() != nil {
			return
		}
		c.logSilent(ctx, r)
		policies, interval := c.evaluate(r)
		interval = c.shared(r, interval)
		for _, p := range policies {
			changed(p)
		}
		ended := time.Now()
		earliest = ended.Add(min(pauseFactor*ended.Sub(started), calmInterval))
		due = later(ended.Add(interval), earliest)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// stripNode keeps the name.
func stripNode(o any) (any, error) {
	node, ok := o.(*corev1.Node)
	if !ok {
		return o, nil
	}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID}}, nil
}

// evaluate updates what is known of all policies that were noted before the round, and returns those
// whose Text has changed and the time until the next round.
func (c *Collector) evaluate(r *round) (changed []Policy, interval time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	interval = calmInterval
	for p, t := range c.policies {
		if t.since.After(r.started) {
			interval = min(interval, askDelay) // answers may be older than it
			continue
		}
		if c.update(p, t, r, now) {
			changed = append(changed, p)
		}
		switch {
		case t.late.IsZero():
		case now.Sub(t.late) < patience:
			interval = min(interval, askDelay)
		default:
			interval = min(interval, lateInterval)
			t.reason = r.reason(t.needs, t.all)
		}
	}
	slices.SortFunc(changed, c.byUrgency)
	granted, others := c.showWaiting()
	if others {
		interval = min(interval, lateInterval)
	}
	return append(changed, granted...), interval
}

// update updates a policy, and reports whether its Text has changed.
func (c *Collector) update(p Policy, t *followed, r *round, now time.Time) (changed bool) {
	before, inForce := t.report, r.everywhere(t.needs, t.all)
	switch {
	case inForce:
		t.late = time.Time{}
	case t.late.IsZero():
		t.late = r.started
	case now.Sub(t.late) >= patience && (t.all || t.report == Text{}):
		t.report = r.describe(t.needs, t.all)
		t.first = t.first && !t.all
		t.all = false
	}
	c.updateCertain(p, t, r, inForce, now)
	if inForce {
		t.all, t.timed = true, false
	}
	if t.report == before {
		return false
	}
	t.granted, t.waits = false, time.Time{} // of the Text before
	return true
}

// updateCertain updates the report of a policy that is in force on all nodes, or was by its report. While
// it selects uncertain pods, it is not said to be in force.
func (c *Collector) updateCertain(p Policy, t *followed, r *round, inForce bool, now time.Time) {
	switch text, unsure := r.uncertainPods(p); {
	case unsure && (inForce || t.isTrue()):
		t.first = t.first && (t.report == text || t.report == Text{})
		t.report, t.unsure = text, now
	case inForce && (!t.all || t.report.Reason == PodsNotKnownByAddress && now.Sub(t.unsure) >= patience):
		t.report = Text{metav1.ConditionTrue, EnforcedOnAllNodes, fmt.Sprintf("In force on %d of %d nodes%s.", len(r.nodes), len(r.nodes), c.within(t, r))}
	}
}

// within returns within what time of its change a policy came into force, for its Text.
// It returns nothing if the change was before this Collector, or after the policy had been in force.
func (c *Collector) within(t *followed, r *round) string {
	if !t.timed {
		return ""
	}
	const least = 100 * time.Millisecond // the writer learns of a change later than agents may
	took := max(r.inForceSince(t.needs).Sub(t.since), least)
	if took < 10*time.Second {
		return fmt.Sprintf(", within %.1f s of the change", took.Seconds())
	}
	return fmt.Sprintf(", within %v of the change", took.Round(time.Second))
}
