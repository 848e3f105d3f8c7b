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
	"k8s.io/apimachinery/pkg/util/duration"

	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// listOptions are the flags of the command list.
type listOptions struct {
	agentOptions
	output string
}

func newList(o *options) *cobra.Command {
	l := &listOptions{agentOptions: agentOptions{options: o}}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List policies: what they select, whether they are enforced, what they denied, which do nothing",
		Long: `List the policies of all kinds, or with -n those of a namespace: how many pods they
select, which do nothing, whether they are enforced, partly enforced because some part cannot be honoured as
written, or audited, and how many packets they denied since the agents were started, or
would have denied if they are audited.

The policies are those of the live cluster, whose agents are asked as by the command
flows, or of manifests (-f), where nothing is denied.

A policy is unused as a whole if it selects no pod, or if others allow the same to the
same pods. Else those of its rules are unused, by direction and place in the list, that
have decided about no packet since the agents were started: standard error says when,
and what they did not count. Rules that Pass, and those of audited policies, never
decide, and connections from before an agent's start are not counted.

The exit code is 0 when all agents have answered, 1 when some have not, which are named on
standard error, and 2 when the policies cannot be read.`,
		Example: `  kubectl netpol list -n shop
  kubectl-netpol list -f ./manifests`,
		Args: onlyFiles,
		RunE: func(cmd *cobra.Command, _ []string) error { return l.run(cmd) },
	}
	l.addAgentFlags(cmd.Flags())
	cmd.Flags().StringVarP(&l.output, "output", "o", "text", "text or json")
	return cmd
}

// listedPolicy is a line of the list.
type listedPolicy struct {
	flows.Policy
	Pods  int    `json:"pods"`
	State string `json:"state"`
	// Denied counts the packets that were denied, or would have been if the policy is audited.
	// It is nil if no agent was asked.
	Denied *uint64    `json:"denied,omitempty"`
	Last   *time.Time `json:"lastDenied,omitempty"`
	// Nothing says why the whole policy does nothing, Unused which of its rules decided nothing.
	Nothing string       `json:"doesNothing,omitempty"`
	Unused  []unusedRule `json:"unusedRules,omitempty"`
	age     time.Duration
}

func (l *listOptions) run(cmd *cobra.Command) error {
	if err := checkOutput("list", l.output); err != nil {
		return err
	}
	if len(l.files) > 0 {
		if err := l.checkAgents(cmd, "with --filename"); err != nil {
			return err
		}
	}
	in, err := l.read(cmd.Context(), cmd.InOrStdin())
	if err != nil {
		return err
	}
	if err := l.checkNamespace(in.Namespaces); err != nil {
		return err
	}
	all := l.policies(in)
	complete := true
	if len(l.files) == 0 && len(all) > 0 {
		complete = l.addDenials(cmd, all)
	}
	l.printCaveats(cmd.ErrOrStderr())
	if err := l.write(cmd.OutOrStdout(), all); err != nil {
		return err
	}
	if !complete {
		return errNo
	}
	return nil
}

// policies returns the policies in the order of kinds and names.
func (l *listOptions) policies(in clusterstate.Input) []*listedPolicy {
	audited := auditedIn(in)
	redundant := l.redundant(in, audited)
	c := l.cluster(in)
	selected, findings := c.SelectedPods(), map[policy.Ref][]policy.Finding{}
	for _, f := range c.Findings() {
		f.Policy.Generation = 0
		findings[f.Policy] = append(findings[f.Policy], f)
	}
	var all []*listedPolicy
	for _, o := range in.Policies {
		if l.namespace != "" && o.GetNamespace() != l.namespace {
			continue
		}
		ref := policy.Ref{Kind: compile.KindOf(o).Name, Namespace: o.GetNamespace(), Name: o.GetName()}
		p := &listedPolicy{
			Policy: flows.Policy{Kind: ref.Kind, Namespace: ref.Namespace, Name: ref.Name},
			Pods:   selected[ref], State: stateOf(audited(o), findings[ref]), Nothing: redundant[objectOf(o)],
		}
		switch {
		case p.Pods == 0 && len(l.limits) == 0:
			p.Nothing = "selects no pod"
		case p.Nothing == "" && len(l.files) == 0 && !audited(o):
			p.Unused = rulesOf(o, in)
		}
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *listedPolicy) int {
		return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return all
}

// stateOf returns how a policy with these findings is enforced.
func stateOf(audited bool, findings []policy.Finding) string {
	switch {
	case slices.ContainsFunc(findings, func(f policy.Finding) bool { return f.Whole }):
		return "not enforced"
	case audited && len(findings) > 0:
		return "audited, partly"
	case audited:
		return "audited"
	case len(findings) > 0:
		return "partly enforced"
	}
	return "enforced"
}

// addDenials asks the agents what the policies denied, and reports whether all have answered.
func (l *listOptions) addDenials(cmd *cobra.Command, all []*listedPolicy) (complete bool) {
	complete = true
	questions := []string{"--rules"}
	for _, p := range all {
		p.Denied = new(uint64)
		if strings.HasPrefix(p.State, "audited") {
			questions = []string{"--rules", "--audit"}
		}
	}
	for _, question := range questions {
		answers, err := l.ask(cmd, []string{agentCommand, "flows", question})
		if err != nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "Not known: what policies denied: %v\n", err)
			for _, p := range all {
				p.Denied, p.Unused = nil, nil
			}
			return false
		}
		if question == "--rules" {
			printCounting(cmd.ErrOrStderr(), answers)
		}
		for i := range answers {
			complete = complete && !answers[i].failed()
			for _, kind := range []string{flows.TypeRule, flows.TypeFlow} {
				for _, r := range recordsOf(answers[i].records, kind) {
					addDenial(all, r)
					removeUsed(all, r)
				}
			}
		}
	}
	if !complete { // an agent that did not answer may have counted any rule
		for _, p := range all {
			p.Unused = nil
		}
	}
	return complete
}

// addDenial adds what a record says of the policy that denied, or of the audited one that would
// have.
func addDenial(all []*listedPolicy, r aged) {
	d := &r.Decision
	if r.Type == flows.TypeFlow {
		d = r.Audit
	}
	for _, p := range all {
		if d == nil || d.Verdict != flows.Deny || d.Policy == nil || *d.Policy != p.Policy {
			continue
		}
		*p.Denied += r.Count
		if p.Last == nil || r.age < p.age {
			p.Last, p.age = r.Last, r.age
		}
	}
}

func (l *listOptions) write(w io.Writer, all []*listedPolicy) error {
	if l.output == "json" {
		return printJSON(w, l.withCaveats(map[string]any{"policies": all}))
	}
	out := bufio.NewWriter(w)
	if len(all) == 0 {
		fmt.Fprintln(out, "No policies")
		return out.Flush()
	}
	rows := [][]string{{"KIND", "NAME", "PODS", "STATE", "UNUSED", "DENIED", "LAST"}}
	for _, p := range all {
		denied, last := "", ""
		if p.Denied != nil {
			denied = fmt.Sprint(*p.Denied)
		}
		if p.Last != nil {
			last = duration.HumanDuration(p.age) + " ago"
		}
		name := p.Name
		if p.Namespace != "" {
			name = p.Namespace + "/" + name
		}
		rows = append(rows, []string{p.Kind, name, fmt.Sprint(p.Pods), p.State, p.unusedText(), denied, last})
	}
	if all[0].Denied == nil {
		for i := range rows {
			rows[i] = rows[i][:5]
		}
	}
	writeColumns(out, rows)
	return out.Flush()
}
