package suite

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
	"sigs.k8s.io/kube-network-policies/tests/netpol/junit"
)

// report is what is written to files once all scenarios have been played.
type report struct {
	backend string
	support netpol.Support
	// scenarios and results have the same order; scenarios that were not reached have
	// no result.
	scenarios []netpol.Scenario
	results   []netpol.Result
	summary   netpol.Summary
}

// write writes the files that are named.
func (r *report) write(junitFile, markdownFile string) error {
	if junitFile != "" {
		var out strings.Builder
		if err := junit.Write(&out, r.junit()); err != nil {
			return err
		}
		if err := os.WriteFile(junitFile, []byte(out.String()), 0o644); err != nil {
			return err
		}
	}
	if markdownFile != "" {
		return os.WriteFile(markdownFile, []byte(r.markdown()), 0o644)
	}
	return nil
}

func (r *report) junit() junit.Suite {
	s := junit.Suite{Name: "netpol " + r.backend}
	for i, scenario := range r.scenarios {
		c := junit.Case{Class: "netpol", Name: scenario.Name}
		if i >= len(r.results) {
			c.Error = "not played: the run was interrupted"
			s.Cases = append(s.Cases, c)
			continue
		}
		result := r.results[i]
		c.Took = result.Took
		switch {
		case result.Differs():
			c.Failure = result.Report(netpol.Unicode, false)
		case result.Err != nil:
			c.Error = result.Err.Error()
		case len(result.Steps) == 0:
			c.Skipped = "not supported by this backend: " + strings.Join(result.Unsupported, ", ")
		}
		s.Cases = append(s.Cases, c)
	}
	return s
}

// markdown returns what the provider does: how many scenarios passed, which did not,
// with their tables, and what could not be observed.
func (r *report) markdown() string {
	var out strings.Builder
	fmt.Fprintf(&out, "# Network policy scenarios on %s\n\n%s.\n\n", r.backend, &r.summary)
	fmt.Fprintf(&out, "Supported: %s; %s; %s.\n", joined(r.support.Protocols), joined(r.support.Families), count(r.support.Nodes, "node"))
	if len(r.support.Features) > 0 {
		fmt.Fprintf(&out, "Features: %s.\n", joined(r.support.Features))
	}
	out.WriteString("\n| scenario | statements | steps | cells | left out | result |\n| --- | --- | --- | --- | --- | --- |\n")
	for i, scenario := range r.scenarios {
		result := netpol.Result{}
		if i < len(r.results) {
			result = r.results[i]
		}
		fmt.Fprintf(&out, "| %s | %s | %d | %d | %d | %s |\n", cell(scenario.Name), strings.Join(scenario.Statements, ", "),
			len(result.Steps), result.Cells(), result.LeftOut, r.outcome(i))
	}
	for _, result := range r.results {
		if !result.OK() {
			fmt.Fprintf(&out, "\n## %s\n\n```\n%s```\n", result.Scenario, result.Report(netpol.Unicode, false))
		}
	}
	return out.String()
}

// outcome is the result of a scenario in a few words.
func (r *report) outcome(i int) string {
	if i >= len(r.results) {
		return "not played"
	}
	switch result := r.results[i]; {
	case result.Differs():
		return "**failed**"
	case result.Err != nil:
		return "**no result**"
	case len(result.Steps) == 0:
		return "not supported: " + cell(strings.Join(result.Unsupported, ", "))
	case len(result.Unsupported) > 0:
		return "passed, without " + cell(strings.Join(result.Unsupported, ", "))
	}
	return "passed"
}

// cell makes a text fit into a cell of a table.
func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func joined[S ~string](all []S) string {
	var texts []string
	for _, s := range all {
		texts = append(texts, string(s))
	}
	slices.Sort(texts)
	return strings.Join(texts, ", ")
}
