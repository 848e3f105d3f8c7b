package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/lint"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/words"
	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/pkg/base/printable"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// unusedRule names a rule by its index in the list of its direction.
type unusedRule struct {
	Direction string `json:"direction"`
	Rule      int    `json:"rule"`
}

// redundant returns by policy which others allow the same to the same pods. Audited policies are
// not enforced, so that they can replace none.
func (l *listOptions) redundant(in clusterstate.Input, audited func(compile.Object) bool) map[lint.Object]string {
	enforced := slices.DeleteFunc(slices.Clone(in.Policies), audited)
	return lint.Redundant(lint.Input{Features: in.Features, Namespaces: in.Namespaces, Pods: in.Pods, Nodes: in.Nodes, CIDRGroups: in.CIDRGroups, Policies: enforced})
}

// auditedIn returns what reports whether a policy is audited.
func auditedIn(in clusterstate.Input) func(compile.Object) bool {
	namespaces := map[string]metav1.Object{}
	for _, ns := range in.Namespaces {
		namespaces[ns.Name] = ns
	}
	return func(o compile.Object) bool { return compile.Audits(o, namespaces[o.GetNamespace()]) }
}

// rulesOf returns the rules of a policy that can decide: those that Pass never do.
func rulesOf(o compile.Object, in clusterstate.Input) []unusedRule {
	p := compile.KindOf(o).Compile(o, in.Features, compile.NewCIDRGroups(in.CIDRGroups))
	var rules []unusedRule
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		for _, r := range p.Rules(d) {
			if rule := (unusedRule{d.String(), r.Index}); r.Action != policy.Pass && !slices.Contains(rules, rule) {
				rules = append(rules, rule)
			}
		}
	}
	return rules
}

// removeUsed removes the rule that has decided from the unused ones.
func removeUsed(all []*listedPolicy, r aged) {
	if r.Rule == nil {
		return
	}
	for _, p := range all {
		if p.Policy == *r.Policy {
			p.Unused = slices.DeleteFunc(p.Unused, func(u unusedRule) bool { return u == unusedRule{r.Direction, *r.Rule} })
		}
	}
}

// printCounting says how long agents have counted, and what they counted for no rule.
func printCounting(w io.Writer, answers []answer) {
	note := func(format string, args ...any) { fmt.Fprintln(w, printable.Text(fmt.Sprintf(format, args...))+".") }
	var agents []flows.Record
	for i := range answers {
		for _, r := range answers[i].records {
			switch {
			case r.Type == flows.TypeAgent:
				agents = append(agents, r)
			case r.Type == flows.TypeRule && r.Policy.Kind == flows.OtherRules:
				note("Node %s: %s for no rule, because too many rules decided", r.Node, words.Count(r.Count, "decision counts", "decisions count"))
			}
		}
	}
	for _, a := range agents {
		if a.AuditOnly {
			note("Node %s: its agent runs with --audit, so that no rule decides", a.Node)
		}
		if a.Lost > 0 {
			note("Node %s: %s for no rule, because they came too fast", a.Node, words.Count(a.Lost, "decision counts", "decisions count"))
		}
	}
	if len(agents) == 0 {
		return
	}
	latest := slices.MinFunc(agents, func(a, b flows.Record) int { return cmp.Compare(counting(&a), counting(&b)) })
	note("Unused since the agents were started: that of node %s %s ago", latest.Node, duration.HumanDuration(counting(&latest)))
}

// counting returns how long an agent has counted, by its own clock.
func counting(agent *flows.Record) time.Duration {
	if agent.Started == nil {
		return 0 // the agent does not say
	}
	return max(0, agent.Time.Sub(*agent.Started))
}

// unusedText says which part of a policy does nothing.
func (p *listedPolicy) unusedText() string {
	if p.Nothing != "" {
		return "all, " + p.Nothing
	}
	var rules []string
	for _, r := range p.Unused {
		rules = append(rules, fmt.Sprintf("%s %d", r.Direction, r.Rule))
	}
	return strings.Join(rules, ", ")
}
