package main

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/pkg/base/printable"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

const day = 24 * time.Hour

// unusedOptions are the flags of the command unused.
type unusedOptions struct {
	agentOptions
	days   int
	output string
}

func newUnused(o *options) *cobra.Command {
	u := &unusedOptions{agentOptions: agentOptions{options: o}}
	cmd := &cobra.Command{
		Use:   "unused",
		Short: "List rules of policies that have decided nothing",
		Long: `List the rules that have decided about no packet since the agents were started, or
for a number of days (--days). The policies are those of the live cluster, or of
manifests (-f); with -n, only those of a namespace.

Agents count from their start, and standard error says since when. Not known is what
was decided before, what agents of nodes that are gone have counted, and which rules
allowed connections that were opened before and still exist. If a policy was edited
since, a count may be of another rule that had the same place in its list.

A rule that is listed may match packets that an earlier rule decides. Rules that Pass
never decide, and those of audited policies are not enforced: neither are listed.

The agents are asked like those of the command flows.

The exit code is 0 when all agents have counted for so long, 1 when some have not or
have not answered, which are named on standard error, and 2 when there is no answer.`,
		Example: `  kubectl netpol unused -n shop
  kubectl netpol unused --days 30 -o json`,
		Args: onlyFiles,
		RunE: func(cmd *cobra.Command, _ []string) error { return u.run(cmd) },
	}
	fs := cmd.Flags()
	fs.IntVar(&u.days, "days", 0, "also list rules that decided last so many days ago; 0 lists those that did not since the agents were started")
	u.addAgentFlags(fs)
	fs.StringVarP(&u.output, "output", "o", "text", "text or json")
	return cmd
}

func (u *unusedOptions) run(cmd *cobra.Command) error {
	if err := checkOutput("unused", u.output); err != nil {
		return err
	}
	if u.days < 0 {
		return fmt.Errorf("--days=%d: must not be negative", u.days)
	}
	in, err := u.read(cmd.Context(), cmd.InOrStdin())
	if err != nil {
		return err
	}
	answers, err := u.ask(cmd, []string{agentCommand, "flows", "--rules"})
	if err != nil {
		return err
	}
	counts, minAge := newCounts(answers), time.Duration(u.days)*day
	r := unusedReport{Unused: counts.unused(u.rulesOf(in), minAge), Notes: counts.notes(minAge)}
	u.printCaveats(cmd.ErrOrStderr())
	if err := u.write(cmd, &r); err != nil {
		return err
	}
	if !counts.complete(minAge) || slices.ContainsFunc(answers, answer.failed) {
		return errNo
	}
	return nil
}

// unusedReport is the answer.
type unusedReport struct {
	Unused []unusedRule `json:"unused"`
	// Notes are sentences that say how long agents have counted and what they did not count.
	Notes []string `json:"notes"`
}

// ruleName identifies a rule by its index in the list of its direction.
type ruleName struct {
	flows.Policy
	Direction string `json:"direction"`
	Rule      int    `json:"rule"`
}

// unusedRule is a rule with the time of its last decision, nil for never.
type unusedRule struct {
	ruleName
	Last *time.Time `json:"last,omitempty"`
	age  time.Duration
}

// rulesOf returns the rules of enforced policies that can decide.
func (u *unusedOptions) rulesOf(in clusterstate.Input) []ruleName {
	namespaces := map[string]metav1.Object{}
	for _, ns := range in.Namespaces {
		namespaces[ns.Name] = ns
	}
	groups := compile.NewCIDRGroups(in.CIDRGroups)
	var names []ruleName
	for _, o := range in.Policies {
		if u.namespace != "" && o.GetNamespace() != u.namespace || compile.Audits(o, namespaces[o.GetNamespace()]) {
			continue
		}
		k := compile.KindOf(o)
		p := k.Compile(o, in.Features, groups)
		for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
			for _, r := range p.Rules(d) {
				if r.Action != policy.Pass {
					names = append(names, ruleName{flows.Policy{Kind: k.Name, Namespace: o.GetNamespace(), Name: o.GetName()}, d.String(), r.Index})
				}
			}
		}
	}
	slices.SortFunc(names, func(a, b ruleName) int {
		return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name),
			-strings.Compare(a.Direction, b.Direction), cmp.Compare(a.Rule, b.Rule))
	})
	return slices.Compact(names)
}

// counts are what agents have counted.
type counts struct {
	agents     []flows.Record
	last       map[ruleName]aged
	otherRules []flows.Record // rules that are not counted separately
}

func newCounts(answers []answer) *counts {
	c := &counts{last: map[ruleName]aged{}}
	for i := range answers {
		if answers[i].err != nil {
			continue
		}
		c.agents = append(c.agents, answers[i].records[0])
		for _, found := range recordsOf(answers[i].records, flows.TypeRule) {
			c.add(found)
		}
	}
	return c
}

func (c *counts) add(r aged) {
	if r.Policy.Kind == flows.OtherRules {
		c.otherRules = append(c.otherRules, *r.Record)
	}
	if r.Rule == nil {
		return
	}
	name := ruleName{*r.Policy, r.Direction, *r.Rule}
	if known, ok := c.last[name]; !ok || r.age < known.age {
		c.last[name] = r
	}
}

// unused returns the rules that decided nothing for the given time, 0 for never.
func (c *counts) unused(rules []ruleName, minAge time.Duration) []unusedRule {
	unused := []unusedRule{}
	for _, name := range rules {
		switch last, ok := c.last[name]; {
		case !ok:
			unused = append(unused, unusedRule{ruleName: name})
		case minAge > 0 && last.age >= minAge:
			unused = append(unused, unusedRule{ruleName: name, Last: last.Last, age: last.age})
		}
	}
	return unused
}

// complete reports whether all agents count rules and have counted for that time.
func (c *counts) complete(minAge time.Duration) bool {
	return !slices.ContainsFunc(c.agents, func(a flows.Record) bool { return a.AuditOnly || counting(&a) < minAge })
}

// notes say how long agents have counted and what they did not count.
func (c *counts) notes(minAge time.Duration) (notes []string) {
	note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	latest := slices.MinFunc(c.agents, func(a, b flows.Record) int { return cmp.Compare(counting(&a), counting(&b)) })
	note("Agents that answered: %d; the one of node %s was started last, %s ago", len(c.agents), latest.Node, duration.HumanDuration(counting(&latest)))
	for i := range c.agents {
		a := &c.agents[i]
		if counting(a) < minAge {
			note("Node %s: its agent has counted for %s only", a.Node, duration.HumanDuration(counting(a)))
		}
		if a.AuditOnly {
			note("Node %s: its agent runs with --audit, so that no rule decides", a.Node)
		}
		if a.Lost > 0 {
			note("Node %s: %s for no rule, because they came too fast", a.Node, count(a.Lost, "decision counts", "decisions count"))
		}
	}
	for i := range c.otherRules {
		other := count(c.otherRules[i].Count, "decision counts for no rule of its", "decisions count for no rule of their")
		note("Node %s: %s own, because too many rules decided", c.otherRules[i].Node, other)
	}
	return notes
}

// counting returns how long an agent has counted, by its own clock.
func counting(agent *flows.Record) time.Duration {
	if agent.Started == nil {
		return 0 // the agent does not say
	}
	return max(0, agent.Time.Sub(*agent.Started))
}

func (u *unusedOptions) write(cmd *cobra.Command, r *unusedReport) error {
	if u.output == "json" {
		return printJSON(cmd.OutOrStdout(), u.withCaveats(r))
	}
	for _, note := range r.Notes {
		fmt.Fprintln(cmd.ErrOrStderr(), printable.Text(note)+".")
	}
	return writeUnused(cmd.OutOrStdout(), r.Unused)
}

func writeUnused(w io.Writer, unused []unusedRule) error {
	out := bufio.NewWriter(w)
	if len(unused) == 0 {
		fmt.Fprintln(out, "No unused rules")
		return out.Flush()
	}
	rows := [][]string{{"POLICY", "DIRECTION", "RULE", "LAST DECIDED"}}
	for _, r := range unused {
		last := "never"
		if r.Last != nil {
			last = duration.HumanDuration(r.age) + " ago"
		}
		rows = append(rows, []string{policyName(&r.Policy), r.Direction, fmt.Sprint(r.Rule), last})
	}
	writeColumns(out, rows)
	return out.Flush()
}
