package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/clusterfiles"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/suggest"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/words"
	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// suggestOptions are the flags of the command suggest.
type suggestOptions struct {
	agentOptions
	records []string
	blocks  []string
	denied  bool
	enforce bool
}

func newSuggest(o *options) *cobra.Command {
	s := &suggestOptions{agentOptions: agentOptions{options: o}}
	cmd := &cobra.Command{
		Use:   "suggest -n NAMESPACE",
		Short: "Suggest policies that allow what was recorded",
		Long: `Suggest the smallest NetworkPolicies of a namespace that allow the flows which agents
have recorded from and to its pods, and deny the rest. They are manifests on standard
output, with a comment for each rule that says which flows it is for, and are audited
when they are applied. Standard error has the flows that they cannot allow. What changes
once they are enforced, diff says: suggest --enforce > FILE, diff -f FILE.

Agents record the packets of pods that policies select. A default deny that is audited
selects all pods of a namespace, and denies nothing.

The records are asked of the agents, as by the command flows and with the same rights,
or read from --records. The cluster is the live one or that of -f, as in all commands.

The exit code is 0 when every flow passes with the policies, 1 when some do not or some
agents have not answered, and 2 when there is no suggestion.`,
		Example: `  kubectl netpol suggest -n shop | kubectl apply -f -
  kubectl netpol suggest -n shop --block office=203.0.113.0/24
  kubectl netpol flows -n shop -o json > records; kubectl netpol suggest -n shop -f manifests --records records`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.run(cmd) },
	}
	fs := cmd.Flags()
	fs.StringArrayVar(&s.records, "records", nil, "file of flow records to read instead of asking the agents: lines that flows -o json prints, or agents with --flow-log; - is standard input; may be repeated")
	fs.StringArrayVar(&s.blocks, "block", nil, "NAME=CIDR: allow this block instead of single addresses in it; may be repeated")
	fs.BoolVar(&s.denied, "with-denied", false, "also allow flows that enforced policies denied")
	fs.BoolVar(&s.enforce, "enforce", false, "leave out the annotation that has the policies audited: they are enforced when they are applied")
	s.addAgentFlags(fs)
	return cmd
}

func (s *suggestOptions) run(cmd *cobra.Command) error {
	if len(s.records) > 0 {
		if err := s.checkAgents(cmd, "with --records"); err != nil {
			return err
		}
	}
	in := suggest.Input{PodRanges: s.ranges, Denied: s.denied, Enforced: s.enforce}
	if err := s.parse(&in); err != nil {
		return err
	}
	s.templates = true
	cluster, err := s.read(cmd.Context(), cmd.InOrStdin())
	if err != nil {
		return err
	}
	s.namespace = cmp.Or(s.namespace, s.defaultNamespace, metav1.NamespaceDefault)
	if err := s.checkNamespace(cluster.Namespaces); err != nil {
		return err
	}
	in.Cluster, in.Selectors, in.Namespace, in.Behind = cluster, s.selectors, s.namespace, s.services.backends
	in.Translated = s.services.translated()
	answers, err := s.readRecords(cmd)
	if err != nil {
		return err
	}
	for i := range answers {
		in.Records = append(in.Records, answers[i].records...)
	}
	suggestion, err := suggest.Make(in)
	s.printCaveats(cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	if err := s.print(cmd.OutOrStdout(), cmd.ErrOrStderr(), suggestion); err != nil {
		return err
	}
	if len(suggestion.Uncovered) > 0 || slices.ContainsFunc(answers, answer.failed) {
		return errNo
	}
	return nil
}

// parse parses the flags.
func (s *suggestOptions) parse(in *suggest.Input) error {
	switch {
	case s.everywhere:
		return errors.New("--all-namespaces: policies are suggested for one namespace, that of --namespace")
	case len(s.files) > 0 && len(s.records) == 0:
		return errors.New("--filename: --records is needed, too: only the agents of a live cluster have flows")
	case slices.Contains(s.files, clusterfiles.Stdin) && slices.Contains(s.records, clusterfiles.Stdin):
		return errors.New("--filename=- and --records=-: standard input can be read once")
	}
	for _, text := range s.blocks {
		b, err := suggest.ParseBlock(text)
		if err != nil {
			return fmt.Errorf("--block=%w", err)
		}
		in.Blocks = append(in.Blocks, b)
	}
	return nil
}

// readRecords returns the answers of the agents, or the records in files as one answer.
func (s *suggestOptions) readRecords(cmd *cobra.Command) ([]answer, error) {
	if len(s.records) == 0 {
		answers, err := s.ask(cmd, []string{agentCommand, "flows", "--namespace=" + s.namespace})
		for i := range answers {
			writeLosses(cmd.ErrOrStderr(), answers[i].records)
		}
		return answers, err
	}
	return readRecordFiles(s.records, cmd.InOrStdin())
}

// readRecordFiles returns the records in files as one answer.
func readRecordFiles(files []string, stdin io.Reader) ([]answer, error) {
	var read answer
	for _, path := range files {
		err := readFile(path, stdin, func(r io.Reader) error {
			return flows.Decode(r, func(record *flows.Record) error {
				read.records = append(read.records, *record)
				return nil
			})
		})
		if err != nil {
			return nil, fmt.Errorf("--records=%s: %w", path, err)
		}
	}
	return []answer{read}, nil
}

// readFile calls read with a file or with standard input.
func readFile(path string, stdin io.Reader, read func(io.Reader) error) error {
	if path == clusterfiles.Stdin {
		return read(stdin)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return read(f)
}

// print writes the policies to out and the notes about them to errs.
func (s *suggestOptions) print(out, errs io.Writer, suggestion *suggest.Suggestion) error {
	manifests, err := suggestion.YAML()
	if err != nil {
		return err
	}
	var text strings.Builder
	s.describe(&text, suggestion)
	if _, err := io.WriteString(out, manifests); err != nil {
		return err
	}
	_, err = io.WriteString(errs, text.String())
	return err
}

// describe says which flows the policies allow and which they do not.
func (s *suggestOptions) describe(w io.Writer, suggestion *suggest.Suggestion) {
	fmt.Fprintf(w, "Allowed when enforced: %s, each one evaluated.\n", words.Count(suggestion.Flows, "flow", "flows"))
	if suggestion.Denied > 0 {
		fmt.Fprintf(w, "Left out, because they were denied (--with-denied): %s.\n", words.Count(suggestion.Denied, "flow", "flows"))
	}
	describeUncovered(w, suggestion.Uncovered)
	for _, note := range suggestion.Notes {
		fmt.Fprintln(w, note)
	}
	if len(suggestion.Policies) == 0 {
		fmt.Fprintln(w, "No policy is needed for that.")
	}
	var names []string
	for _, p := range suggestion.Policies {
		if !s.enforce {
			names = append(names, p.Name)
		}
	}
	if names = append(names, suggestion.Audited...); len(names) > 0 {
		fmt.Fprintf(w, "To enforce what is audited:\n  kubectl annotate networkpolicy -n %s %s %s-\n", s.namespace, strings.Join(names, " "), compile.EnforcementAnnotation)
	}
}

// describeUncovered lists the flows that are not allowed by reason.
func describeUncovered(w io.Writer, all []suggest.Uncovered) {
	var reasons []string
	flowsBy := map[string][]string{}
	for _, u := range all {
		flow := u.Flow
		if u.Flows > 1 {
			flow += fmt.Sprintf(" (%d flows of pods)", u.Flows)
		}
		if flowsBy[u.Reason] == nil {
			reasons = append(reasons, u.Reason)
		}
		flowsBy[u.Reason] = append(flowsBy[u.Reason], flow)
	}
	for _, reason := range reasons {
		if found := flowsBy[reason]; len(found) > 1 {
			fmt.Fprintf(w, "Not allowed, as %s:\n  %s\n", reason, strings.Join(found, "\n  "))
		} else {
			fmt.Fprintf(w, "Not allowed: %s: %s\n", found[0], reason)
		}
	}
}
