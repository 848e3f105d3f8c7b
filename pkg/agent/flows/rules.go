package flows

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

const (
	// maxRules is how many combinations of rule, direction and verdict are counted
	// separately.
	maxRules = 1024
	// OtherRules is the kind and the name of the policy that all further rules are counted
	// for.
	OtherRules = "other"
	// noRule is the label of decisions without a rule: the policy isolates, or there is no
	// policy.
	noRule = "none"
)

// ruleKey is a rule and its verdict, for all generations of the policy.
type ruleKey struct {
	policy    policyName
	direction policy.Direction
	rule      int // policy.Isolation for none
	action    policy.Action
}

// ruleCount counts the decisions of a rule.
type ruleCount struct {
	packets     uint64
	first, last time.Duration
}

// rules counts decisions by rule, in bounded memory. It is not safe for concurrent use.
type rules map[ruleKey]*ruleCount

// add counts packets decided as d.
func (r rules) add(d *policy.Decision, packets uint64, first, last time.Duration) {
	k := ruleKey{direction: d.Direction, rule: policy.Isolation, action: d.Action}
	if d.Policy != nil {
		k.policy = policyName{d.Policy.Kind, d.Policy.Namespace, d.Policy.Name}
	}
	if d.Reason == policy.RuleMatched {
		k.rule = d.Rule
	}
	if r[k] == nil && len(r) >= maxRules {
		k.policy, k.rule = policyName{kind: OtherRules, name: OtherRules}, policy.Isolation
	}
	c := r[k]
	if c == nil {
		c = &ruleCount{first: first}
		r[k] = c
	}
	c.packets += packets
	c.first, c.last = min(c.first, first), max(c.last, last)
}

// records returns a record for each rule, ordered by policy.
func (r rules) records(node string, c *clock) []Record {
	records := make([]Record, 0, len(r))
	for k, n := range r {
		rec := Record{
			Type: TypeRule, Node: node, Count: n.packets, First: c.at(n.first), Last: c.at(n.last),
			Decision: Decision{
				Verdict: k.action.String(), Direction: k.direction.String(),
				Policy: &Policy{Kind: k.policy.kind, Namespace: k.policy.namespace, Name: k.policy.name},
			},
		}
		if k.rule != policy.Isolation {
			rec.Rule = &k.rule
		}
		records = append(records, rec)
	}
	slices.SortFunc(records, compareRules)
	return records
}

func compareRules(a, b Record) int {
	rule := func(r *Record) int {
		if r.Rule == nil {
			return policy.Isolation
		}
		return *r.Rule
	}
	return cmp.Or(
		strings.Compare(a.Policy.Kind, b.Policy.Kind), strings.Compare(a.Policy.Namespace, b.Policy.Namespace), strings.Compare(a.Policy.Name, b.Policy.Name),
		strings.Compare(a.Direction, b.Direction), cmp.Compare(rule(&a), rule(&b)), strings.Compare(a.Verdict, b.Verdict),
	)
}

var (
	ruleLabels   = []string{"kind", "namespace", "policy", "direction", "rule", "verdict"}
	decidedRules = prometheus.NewDesc("netpol_rule_decisions_total",
		"Packets decided by policies. The rule is its index, or none: the policy isolates the pod and no rule matched.", ruleLabels, nil)
	auditedRules = prometheus.NewDesc("netpol_audit_packets_total",
		"Packets to which audited policies would give another verdict: this one, with the policy and rule.", ruleLabels, nil)
)

// ruleMetrics exports the counts of a Recorder.
type ruleMetrics struct{ *Recorder }

// Describe implements prometheus.Collector.
func (m ruleMetrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- decidedRules
	ch <- auditedRules
}

// Collect implements prometheus.Collector.
func (m ruleMetrics) Collect(ch chan<- prometheus.Metric) {
	m.drain()
	m.mu.Lock()
	all := append(m.decided.metrics(decidedRules), m.audited.metrics(auditedRules)...)
	m.mu.Unlock()
	for _, metric := range all {
		ch <- metric
	}
}

func (r rules) metrics(desc *prometheus.Desc) []prometheus.Metric {
	all := make([]prometheus.Metric, 0, len(r))
	for k, n := range r {
		rule := noRule
		if k.rule != policy.Isolation {
			rule = strconv.Itoa(k.rule)
		}
		all = append(all, prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n.packets),
			k.policy.kind, k.policy.namespace, k.policy.name, k.direction.String(), rule, k.action.String()))
	}
	return all
}
