package denials

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/pkg/status/agents"
)

const (
	// interval is how often agents are asked, and the least time between two texts for a
	// policy.
	interval = time.Minute
	// agentsAtOnce is how many agents are asked at the same time. Each has agents.Timeout, and
	// a round has roundTimeout: agents that were not asked by then count as silent.
	agentsAtOnce = 64
	roundTimeout = 45 * time.Second
	// maxTexts is how many policies get a text in an interval: each text is a write, which
	// every agent receives.
	maxTexts = 60
	// maxExpired is how many texts go in an interval. An attack that ends makes all texts expire at
	// once, and packets must not cause more writes later than they may at first.
	maxExpired = 30
	// maxPair bounds the text of a pair, in bytes. It has at most two pod names.
	maxPair = 600
	// suspicious is how many unknown policies an agent may name before this is logged.
	suspicious = 100
	// maxNamed is how many silent agents a log line names.
	maxNamed = 5
)

// Config configures a Collector.
type Config = agents.Config[flows.Denied]

// Policy identifies a policy.
type Policy struct {
	Kind string
	types.NamespacedName
}

// Policies knows the policies that exist in the API.
type Policies interface {
	// Kinds returns the kinds whose policies are listed. Denials of other kinds are ignored
	// until they are listed.
	Kinds() []string
	// Has reports whether a policy of a listed kind exists.
	Has(Policy) bool
	// Listed receives after another kind is listed.
	Listed() <-chan struct{}
}

// Text describes what a policy denied.
type Text struct {
	// Message has the count, the time of the last packet, and pairs of source and
	// destination.
	Message string
	// Audited is set if the policy denied nothing because it is audited, but would have.
	Audited bool
}

// report is the current text of a policy.
type report struct {
	Text
	last  time.Time // time of its last denial
	since time.Time // when the text was made, zero if there is none
	due   bool      // it has denied since then
}

// Collector asks the agents. Of may be called from any goroutine.
type Collector struct {
	cfg      Config
	agents   *prometheus.GaugeVec
	unknown  prometheus.Counter
	errorLog rate.Sometimes
	liesLog  rate.Sometimes

	mu       sync.Mutex
	began    time.Time       // when Run was called
	complete map[string]bool // kinds for which a round since then had complete answers of all agents
	reports  map[Policy]*report
	answered map[types.UID]time.Time // last time that each agent was asked and answered
	waiting  map[Policy]bool         // policies of Await
}

// New returns a Collector. It starts nothing.
func New(cfg Config) (*Collector, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("denials config: %w", err)
	}
	c := &Collector{
		cfg: cfg,
		agents: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "netpol_denials_agents",
			Help: "Agents that were asked last what their policies denied.",
		}, []string{"answered"}),
		unknown: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "netpol_denials_unknown_policies_total",
			Help: "Policies that agents reported and the API does not have: deleted, or an agent lies.",
		}),
		errorLog: rate.Sometimes{First: 1, Interval: 10 * time.Minute},
		liesLog:  rate.Sometimes{First: 1, Interval: 10 * time.Minute},
		waiting:  make(map[Policy]bool),
	}
	cfg.Registerer.MustRegister(c.agents, c.unknown)
	return c, nil
}

// Of returns the text for a policy, an empty Text if it denied nothing. It reports false while
// that is unknown, because not all agents have answered since the start.
func (c *Collector) Of(p Policy) (Text, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.reports[p]; t != nil {
		return t.Text, !t.since.IsZero()
	}
	return Text{}, c.knowsAll(p.Kind) && !c.waiting[p]
}

// Await has Run call changed once Of knows a policy that has a text of an earlier Run. Until then Of
// reports false, so that not all of them go at once.
func (c *Collector) Await(p Policy) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting[p] = true
}

// knowsAll reports whether a policy of this kind without a report has denied nothing: all
// agents have answered since the start, or earlier denials are too old to count.
func (c *Collector) knowsAll(kind string) bool {
	return c.complete[kind] || !c.began.IsZero() && time.Since(c.began) >= flows.DeniedWindow
}

// Run asks the agents about policies until ctx ends, and calls changed for each policy whose
// text has changed or has become known. It may then be called again.
func (c *Collector) Run(ctx context.Context, policies Policies, changed func(Policy)) {
	ctx = klog.NewContext(ctx, klog.LoggerWithName(klog.FromContext(ctx), "denials"))
	c.mu.Lock()
	c.began, c.complete = time.Now(), make(map[string]bool)
	c.reports, c.answered = make(map[Policy]*report), make(map[types.UID]time.Time)
	c.mu.Unlock()
	defer c.agents.Reset()
	factory := agents.Informers(c.cfg.Client, c.cfg.Namespace, c.cfg.Agents)
	pods := factory.Core().V1().Pods().Informer()
	factory.StartWithContext(ctx)
	defer factory.Shutdown()
	if !cache.WaitForCacheSync(ctx.Done(), pods.HasSynced) {
		return
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		for _, p := range c.round(ctx, policies, agents.Running(pods)) {
			changed(p)
		}
		select {
		case <-tick.C:
		case <-policies.Listed():
		case <-ctx.Done():
		}
	}
}

// round asks the agents once, and returns the policies whose texts have changed or have become
// known.
func (c *Collector) round(ctx context.Context, policies Policies, all []*corev1.Pod) []Policy {
	kinds := policies.Kinds()
	has := func(p Policy) bool { return slices.Contains(kinds, p.Kind) && policies.Has(p) }
	r := c.ask(ctx, all, has)
	if ctx.Err() != nil {
		return nil
	}
	c.logSilent(ctx, r)
	c.logUnknown(ctx, r)
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(r.silent) == 0 {
		for _, kind := range kinds {
			c.complete[kind] = true
		}
	}
	c.answered = r.answered
	expired := c.expire(has)
	renewed := c.renew(r)
	return slices.Concat(expired, renewed, c.known(maxExpired-len(expired), has))
}

// logUnknown logs which agent named most unknown policies. A few are normal: policies that
// were just deleted or are not listed yet.
func (c *Collector) logUnknown(ctx context.Context, r *round) {
	c.unknown.Add(float64(r.unknown))
	if r.mostUnknown >= suspicious {
		c.liesLog.Do(func() {
			klog.FromContext(ctx).Info("An agent has denied packets by many policies that do not exist", "node", r.mostUnknownOn, "policies", r.mostUnknown)
		})
	}
}

// logSilent logs which agents have not answered.
func (c *Collector) logSilent(ctx context.Context, r *round) {
	c.agents.WithLabelValues("true").Set(float64(r.asked - len(r.silent)))
	c.agents.WithLabelValues("false").Set(float64(len(r.silent)))
	if len(r.silent) == 0 {
		return
	}
	slices.Sort(r.silent)
	c.errorLog.Do(func() {
		klog.FromContext(ctx).Error(r.err, "Agents have not said what they denied", "count", len(r.silent), "of", r.asked,
			"nodes", r.silent[:min(len(r.silent), maxNamed)])
	})
}

// known returns at most max policies of Await, which Of knows from now on.
func (c *Collector) known(max int, has func(Policy) bool) (known []Policy) {
	for p := range c.waiting {
		switch {
		case !has(p) && c.knowsAll(p.Kind): // it is deleted
			delete(c.waiting, p)
		case c.reports[p] == nil && c.knowsAll(p.Kind):
			known = append(known, p)
		}
	}
	slices.SortFunc(known, byName)
	known = known[:min(len(known), max)]
	for _, p := range known {
		delete(c.waiting, p)
	}
	return known
}

// expire removes the reports of policies that no longer exist or have denied nothing for an hour, and
// returns those that had a text: at most maxExpired, which have denied nothing for the longest time.
func (c *Collector) expire(has func(Policy) bool) (expired []Policy) {
	for p, t := range c.reports {
		switch {
		case !has(p), t.since.IsZero() && time.Since(t.last) >= flows.DeniedWindow:
			delete(c.reports, p)
		case time.Since(t.last) >= flows.DeniedWindow:
			expired = append(expired, p)
		}
	}
	slices.SortFunc(expired, func(a, b Policy) int {
		return cmp.Or(c.reports[a].last.Compare(c.reports[b].last), byName(a, b))
	})
	expired = expired[:min(len(expired), maxExpired)]
	for _, p := range expired {
		delete(c.reports, p)
	}
	return expired
}

func byName(a, b Policy) int { return strings.Compare(a.Kind+a.String(), b.Kind+b.String()) }

// renew makes new texts for policies that have denied packets since their last text, if it is
// their turn.
func (c *Collector) renew(r *round) []Policy {
	due := make(map[Policy]bool)
	for p, t := range r.tallies {
		known := c.reports[p]
		if known == nil {
			known = &report{due: true}
			c.reports[p] = known
		}
		known.due = known.due || t.fresh
		known.last = later(known.last, t.last())
		due[p] = known.due
	}
	changed := c.turns(due, r.said)
	changed = changed[:min(len(changed), maxTexts)]
	for _, p := range changed {
		known := c.reports[p]
		known.Text, known.since, known.due = r.tallies[p].text(r), time.Now(), false
		delete(c.waiting, p)
	}
	return changed
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
