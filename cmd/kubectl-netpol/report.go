package main

import (
	"cmp"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/kube-network-policies/pkg/clusterfiles"
	"sigs.k8s.io/kube-network-policies/pkg/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/lint"
	"sigs.k8s.io/kube-network-policies/pkg/reachability"
)

// report is what check finds, ordered by file and line, or by object.
type report struct {
	Policies int       `json:"policies"` // that were checked
	Findings []finding `json:"findings"`
	Ignored  []finding `json:"ignored"` // by comments and annotations

	policies []compile.Object
}

// finding is a finding and where it is in the files, if it is in one.
type finding struct {
	File string `json:"file,omitempty"`
	Line int    `json:"line,omitempty"` // from 1
	lint.Finding
	// Reason is the agents' reason with the rule not-honoured, or why the finding is
	// ignored.
	Reason string `json:"reason,omitempty"`
}

// newReport checks in, which is from files, or live where there are none.
func newReport(in lint.Input, files *clusterfiles.Objects, disabled []string) *report {
	r := &report{Policies: len(in.Policies), Findings: []finding{}, Ignored: []finding{}, policies: in.Policies}
	if files != nil {
		in.Written = func(o lint.Object, field string) bool {
			// Of what a kustomization makes, fields are not known.
			return files.Written(o.Kind, o.Namespace, o.Name, field) || !files.Written(o.Kind, o.Namespace, o.Name, "spec")
		}
	}
	reasons := map[lint.Finding]string{}
	all := notHonoured(in, reasons)
	faulty := map[string]bool{} // fields that agents do not honour
	for _, f := range all {
		faulty[f.Object.String()+f.Field] = true
	}
	for _, f := range lint.Check(in) {
		if !faulty[f.Object.String()+f.Field] {
			all = append(all, f)
		}
	}
	all = slices.DeleteFunc(all, func(f lint.Finding) bool { return slices.Contains(disabled, f.Rule) })
	remaining, ignored := lint.Apply(locate(all, files), ignores(in, files), disabled)
	for _, f := range remaining {
		if !slices.Contains(disabled, f.Rule) {
			r.Findings = append(r.Findings, place(f, files, reasons[f.Finding]))
		}
	}
	for _, f := range ignored {
		r.Ignored = append(r.Ignored, place(f, files, f.Reason))
	}
	slices.SortStableFunc(r.Findings, compareFindings)
	slices.SortStableFunc(r.Ignored, compareFindings)
	return r
}

// notHonoured returns the findings of the agents, and stores their reasons.
func notHonoured(in lint.Input, reasons map[lint.Finding]string) []lint.Finding {
	rule := lint.RuleNamed(lint.NotHonoured)
	c := reachability.New(clusterstate.Input{Features: in.Features, Policies: in.Policies})
	var all []lint.Finding
	for _, f := range c.Findings() {
		found := lint.Finding{
			Rule: rule.ID, Severity: rule.Severity, Object: lint.Object{Kind: f.Policy.Kind, Namespace: f.Policy.Namespace, Name: f.Policy.Name},
			Field: f.Field.String(), Message: f.Message, Why: rule.Why, Fix: rule.Fix,
		}
		reasons[found] = f.Reason
		all = append(all, found)
	}
	return all
}

// findingLine is a finding of the agents in one line.
func findingLine(f reachability.Finding) string {
	o := lint.Object{Kind: f.Kind, Namespace: f.Namespace, Name: f.Name}
	return fmt.Sprintf("%v: %s: %s: %s", o, f.Field, f.Reason, f.Message)
}

func objectOf(o compile.Object) lint.Object {
	return lint.Object{Kind: compile.KindOf(o).Name, Namespace: o.GetNamespace(), Name: o.GetName()}
}

// locate adds the lines of findings.
func locate(findings []lint.Finding, files *clusterfiles.Objects) []lint.Located {
	all := make([]lint.Located, 0, len(findings))
	for _, f := range findings {
		at := lint.Located{Finding: f}
		if files != nil {
			at.Line = position(files, f.Object, f.Field).Line
		}
		all = append(all, at)
	}
	return all
}

// position returns where a field is, or the last part of it that is there; the zero
// Position if the object is from no file.
func position(files *clusterfiles.Objects, o lint.Object, field string) clusterfiles.Position {
	p, _ := files.Position(o.Kind, o.Namespace, o.Name, field)
	return p
}

func place(f lint.Located, files *clusterfiles.Objects, reason string) finding {
	placed := finding{Line: f.Line, Finding: f.Finding, Reason: reason}
	if files != nil {
		at := position(files, f.Object, f.Field)
		placed.File, placed.Line = at.File, cmp.Or(f.Line, at.Line)
	}
	return placed
}

// ignores returns what the authors of policies and namespaces ignore.
func ignores(in lint.Input, files *clusterfiles.Objects) []lint.Ignore {
	var all []lint.Ignore
	for _, p := range in.Policies {
		all = append(all, lint.IgnoredByAnnotation(objectOf(p), p)...)
		all = append(all, ignoredByComment(objectOf(p), files)...)
	}
	for _, ns := range in.Namespaces {
		o := lint.Object{Kind: compile.KindNamespace.Name, Name: ns.Name}
		all = append(all, lint.IgnoredByAnnotation(o, ns)...)
		all = append(all, ignoredByComment(o, files)...)
	}
	return all
}

// ignoredByComment returns what the comments of an object ignore. Those above it are
// about all of it.
func ignoredByComment(o lint.Object, files *clusterfiles.Objects) []lint.Ignore {
	if files == nil {
		return nil
	}
	var all []lint.Ignore
	first := position(files, o, "").Line
	comments := files.Comments(o.Kind, o.Namespace, o.Name)
	for n, c := range comments {
		rule, reason, ok := lint.ParseComment(c.Text)
		if !ok {
			continue
		}
		last := c.Position.Line + 1
		for _, below := range comments[n+1:] {
			if below.Position.Line == last {
				last++
			}
		}
		all = append(all, lint.Ignore{Object: o, Rule: rule, Reason: reason, Line: c.Position.Line, Last: last, Whole: c.Position.Line < first})
	}
	return all
}

func compareFindings(a, b finding) int {
	return cmp.Or(strings.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), lint.Compare(a.Finding, b.Finding))
}

// keep removes what is not about a namespace.
func (r *report) keep(namespace string) {
	elsewhere := func(f finding) bool {
		return f.Namespace != namespace && (f.Kind != compile.KindNamespace.Name || f.Name != namespace)
	}
	r.Findings = slices.DeleteFunc(r.Findings, elsewhere)
	r.Ignored = slices.DeleteFunc(r.Ignored, elsewhere)
	r.Policies = 0
	for _, p := range r.policies {
		if p.GetNamespace() == namespace {
			r.Policies++
		}
	}
}

// at returns "file:line: ", or nothing.
func (f *finding) at() string {
	switch {
	case f.File == "":
		return ""
	case f.Line == 0:
		return f.File + ": "
	}
	return fmt.Sprintf("%s:%d: ", f.File, f.Line)
}

// where returns the object and the field.
func (f *finding) where() string { return strings.TrimSpace(f.Object.String() + " " + f.Field) }

// writeText writes a line for each finding and one with its fix. The reason follows the
// first finding of each rule.
func writeText(w io.Writer, r *report) error {
	var b strings.Builder
	explained := map[string]bool{}
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%s%v: %s: %s [%s]\n", f.at(), f.Severity, f.where(), f.Message, f.Rule)
		if !explained[f.Rule] {
			fmt.Fprintf(&b, "    %s\n", f.Why)
		}
		explained[f.Rule] = true
		fmt.Fprintf(&b, "    Fix: %s\n", f.Fix)
	}
	fmt.Fprintf(&b, "%s in %s%s\n", count(len(r.Findings), "finding", "findings"), count(r.Policies, "policy", "policies"), r.bySeverity())
	_, err := io.WriteString(w, b.String())
	return err
}

var plurals = map[lint.Severity]string{lint.Error: "errors", lint.Warning: "warnings", lint.Info: "infos"}

// bySeverity counts findings.
func (r *report) bySeverity() string {
	var parts []string
	for _, s := range []lint.Severity{lint.Error, lint.Warning, lint.Info} {
		n := 0
		for _, f := range r.Findings {
			if f.Severity == s {
				n++
			}
		}
		if n > 0 {
			parts = append(parts, count(n, s.String(), plurals[s]))
		}
	}
	if n := len(r.Ignored); n > 0 {
		parts = append(parts, fmt.Sprintf("%d ignored", n))
	}
	if len(parts) == 0 {
		return ""
	}
	return ": " + strings.Join(parts, ", ")
}

// writeGitHub writes commands that GitHub shows beside the lines of a pull request.
func writeGitHub(w io.Writer, r *report) error {
	levels := map[lint.Severity]string{lint.Error: "error", lint.Warning: "warning", lint.Info: "notice"}
	var b strings.Builder
	for _, f := range r.Findings {
		b.WriteString(annotation(levels[f.Severity], filepath.ToSlash(f.File), f.Line, f.Rule, f.where()+": "+f.Message+"\n"+f.Why+"\nFix: "+f.Fix))
	}
	_, err := io.WriteString(w, b.String())
	return err
}
