package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/clusterfiles"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/intent"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/words"
)

type assertOptions struct {
	*options
	output string
}

func newAssert(o *options) *cobra.Command {
	a := &assertOptions{options: o}
	cmd := &cobra.Command{
		Use:   "assert EXPECTATIONS...",
		Short: "Test whether policies do what their authors mean",
		Long: `Test whether policies do what their authors mean. Each file of expectations lists
connections that must be allowed or denied; what is allowed or denied is evaluated
like by agents, for every pod that an expectation names, and in every address
family. The files are arguments, because -f names the manifests of the cluster here
as in all commands; - is the standard input.

An expectation whose sides match no pod is an error, not a success.

The exit code is 0 when all expectations hold, 1 when some do not, and 2 when there
is no answer.`,
		Example: `  kubectl-netpol assert expectations.yaml -f ./manifests
  kubectl-netpol assert expectations.yaml -o junit > report.xml`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("name at least one file of expectations as an argument; -f names manifests")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return a.run(cmd, args) },
	}
	cmd.Flags().StringVarP(&a.output, "output", "o", "text", "text, json, junit or github, which annotates the lines of expectations in a pull request")
	return cmd
}

func (a *assertOptions) run(cmd *cobra.Command, paths []string) error {
	if err := checkOutput("assert", a.output); err != nil {
		return err
	}
	if slices.Contains(paths, clusterfiles.Stdin) && slices.Contains(a.files, clusterfiles.Stdin) {
		return errors.New("the standard input can be read once: as expectations or as manifests")
	}
	expectations, err := readExpectations(paths, cmd.InOrStdin())
	if err != nil {
		return err
	}
	in, err := a.read(cmd.Context(), cmd.InOrStdin())
	if err != nil {
		return err
	}
	a.printCaveats(cmd.ErrOrStderr())
	c := a.cluster(in)
	results, err := intent.Evaluate(in, c, expectations, a.sideFinder(c, in.Pods))
	if err != nil {
		return err
	}
	if rules := c.DomainRules(); len(rules) > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "Not known: what is allowed by domain names, which only agents know: %s\n", shorten(rules))
	}
	if err := a.write(cmd.OutOrStdout(), results); err != nil {
		return err
	}
	if slices.ContainsFunc(results, func(r intent.Result) bool { return !r.Holds() }) {
		return errNo
	}
	return nil
}

// readExpectations reads files of expectations and joins the errors of all files.
func readExpectations(paths []string, stdin io.Reader) ([]intent.Expectation, error) {
	var all []intent.Expectation
	var errs []error
	for _, path := range paths {
		data, err := readArgument(path, stdin)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		expectations, err := intent.Parse(path, data)
		all, errs = append(all, expectations...), append(errs, err)
	}
	return all, errors.Join(errs...)
}

func readArgument(path string, stdin io.Reader) ([]byte, error) {
	if path == clusterfiles.Stdin {
		return io.ReadAll(stdin)
	}
	return os.ReadFile(path)
}

// write writes the results in the format of --output.
func (a *assertOptions) write(w io.Writer, results []intent.Result) error {
	switch a.output {
	case "json":
		return printJSON(w, a.withCaveats(newAssertJSON(results)))
	case "junit":
		return printAssertJUnit(w, results)
	case "github":
		return printAssertGitHub(w, results)
	}
	return printAssertText(w, results)
}

func printAssertText(w io.Writer, results []intent.Result) error {
	var out strings.Builder
	for i := range results {
		r := &results[i]
		mark := "ok  "
		if !r.Holds() {
			mark = "FAIL"
		}
		fmt.Fprintf(&out, "%s  %v: %s\n", mark, r, verdict(r.Allow))
		if !r.Holds() {
			fmt.Fprintf(&out, "      %s:%d\n", r.File, r.Line)
			if r.Why != "" {
				fmt.Fprintf(&out, "      why: %s\n", r.Why)
			}
			for _, line := range failureLines(r) {
				fmt.Fprintf(&out, "      %s\n", line)
			}
		}
		for _, err := range r.LeftOut {
			fmt.Fprintf(&out, "      not evaluated: %v\n", err)
		}
	}
	out.WriteString(assertSummary(results) + "\n")
	_, err := io.WriteString(w, out.String())
	return err
}

// failureLines lists the connections that are not as expected, with the reasons.
func failureLines(r *intent.Result) []string {
	var lines []string
	for _, f := range r.Failures {
		family := ""
		if f.Family == reachability.IPv6 {
			family = " over IPv6"
		}
		is := verdict(f.Allowed)
		if f.Depends != nil {
			is = "not known without addresses, " + strings.Join(f.Depends, ", ")
		}
		lines = append(lines, fmt.Sprintf("%s -> %s%s is %s: %s", f.From, f.To, family, is, f.Reason))
	}
	if more := r.Failed - len(r.Failures); more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more of %d connections", more, r.Connections))
	}
	return lines
}

func assertSummary(results []intent.Result) string {
	failed, connections := 0, 0
	for i := range results {
		connections += results[i].Connections
		if !results[i].Holds() {
			failed++
		}
	}
	summary := fmt.Sprintf("%s about %s", words.Count(len(results), "expectation", "expectations"), words.Count(connections, "connection", "connections"))
	if failed == 0 {
		return summary + ": all hold"
	}
	return fmt.Sprintf("%s: %s not hold", summary, words.Count(failed, "does", "do"))
}
