package main

import (
	"fmt"
	"io"
	"strings"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/intent"
	"sigs.k8s.io/kube-network-policies/tests/netpol/junit"
)

// assertJSON is the answer in JSON.
type assertJSON struct {
	Holds        bool              `json:"holds"`
	Expectations []expectationJSON `json:"expectations"`
}

type expectationJSON struct {
	File        string           `json:"file"`
	Line        int              `json:"line"`
	From        string           `json:"from"`
	To          string           `json:"to"`
	Port        string           `json:"port,omitempty"`
	Protocol    string           `json:"protocol"`
	Expect      string           `json:"expect"`
	Why         string           `json:"why,omitempty"`
	Holds       bool             `json:"holds"`
	Connections int              `json:"connections"`
	Failed      int              `json:"failed"`
	Failures    []intent.Failure `json:"failures,omitempty"` // only the first few
	LeftOut     []string         `json:"leftOut,omitempty"`  // pods that cannot be evaluated
}

func newAssertJSON(results []intent.Result) *assertJSON {
	out := &assertJSON{Holds: true, Expectations: []expectationJSON{}}
	for i := range results {
		r := &results[i]
		out.Holds = out.Holds && r.Holds()
		e := expectationJSON{
			File: r.File, Line: r.Line, From: r.From.String(), To: r.To.String(), Port: r.Port.String(), Protocol: r.Port.Proto.String(),
			Expect: "deny", Why: r.Why, Holds: r.Holds(), Connections: r.Connections, Failed: r.Failed, Failures: r.Failures,
		}
		if r.Allow {
			e.Expect = "allow"
		}
		for _, err := range r.LeftOut {
			e.LeftOut = append(e.LeftOut, err.Error())
		}
		out.Expectations = append(out.Expectations, e)
	}
	return out
}

func printAssertJUnit(w io.Writer, results []intent.Result) error {
	suite := junit.Suite{Name: "kubectl netpol assert"}
	for i := range results {
		r := &results[i]
		c := junit.Case{Class: r.File, Name: expectationName(r), File: r.File}
		if !r.Holds() {
			c.Failure = failureText(r)
		}
		suite.Cases = append(suite.Cases, c)
	}
	return junit.Write(w, suite)
}

// expectationName says what must hold.
func expectationName(r *intent.Result) string {
	return fmt.Sprintf("%v: %s", r.Expectation, verdict(r.Allow))
}

// failureText explains in several lines what does not hold.
func failureText(r *intent.Result) string {
	lines := failureLines(r)
	if r.Why != "" {
		lines = append(lines, "why it must be "+verdict(r.Allow)+": "+r.Why)
	}
	return strings.Join(lines, "\n")
}

// printAssertGitHub prints GitHub workflow commands that annotate the lines of failed
// expectations.
func printAssertGitHub(w io.Writer, results []intent.Result) error {
	var out strings.Builder
	for i := range results {
		if r := &results[i]; !r.Holds() {
			out.WriteString(annotation("error", r.File, r.Line, expectationName(r)+" does not hold", failureText(r)))
		}
	}
	out.WriteString(assertSummary(results) + "\n")
	_, err := io.WriteString(w, out.String())
	return err
}

// annotation returns a GitHub workflow command that annotates a line of a file. The level
// is error, warning or notice. Without file or line it is shown for the whole run.
func annotation(level, file string, line int, title, message string) string {
	properties := ""
	if file != "" {
		properties = "file=" + escapeProperty.Replace(file) + ","
	}
	if file != "" && line > 0 {
		properties += fmt.Sprintf("line=%d,", line)
	}
	return fmt.Sprintf("::%s %stitle=%s::%s\n", level, properties, escapeProperty.Replace(title), escapeMessage.Replace(message))
}

// Characters with a meaning in workflow commands are escaped as in URLs.
var (
	escapeMessage  = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	escapeProperty = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
)
