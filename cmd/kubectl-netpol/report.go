package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apifield "k8s.io/apimachinery/pkg/util/validation/field"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/clusterfiles"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/lint"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/words"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
	"sigs.k8s.io/kube-network-policies/pkg/base/printable"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/tests/netpol/junit"
)

// report is the result of check, ordered by file and line, or by object.
type report struct {
	Policies int       `json:"policies"`          // number of policies, with those that are refused
	Refused  int       `json:"refused,omitempty"` // number of them that API servers refuse
	Findings []finding `json:"findings"`
	Ignored  []finding `json:"ignored"`         // by comments and annotations
	Known    int       `json:"known,omitempty"` // number of findings that the baseline has

	policies []compile.Object
	refused  []lint.Object // policies, each once
}

// finding is a finding with its position in the files, if it has one.
type finding struct {
	File string `json:"file,omitempty"`
	Line int    `json:"line,omitempty"` // from 1
	lint.Finding
	// Reason is the agents' reason if the rule is not-honoured, or the reason to ignore it.
	Reason string `json:"reason,omitempty"`

	also []string // namespaces of other copies of the object that have the finding at the same place
}

// newReport checks in. files are nil for a live cluster.
func newReport(in lint.Input, files *clusterfiles.Objects, disabled []string) *report {
	r := &report{Policies: len(in.Policies), Findings: []finding{}, Ignored: []finding{}, policies: in.Policies}
	if files != nil {
		in.Written = func(o lint.Object, field string) bool {
			// The fields of an object that kustomize built are not known.
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
		if !slices.Contains(disabled, f.Rule) { // findings about comments are new
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

// addRefused adds the objects that API servers refuse.
func (r *report) addRefused(refused []*clusterfiles.Refused) {
	rule := lint.RuleNamed(lint.Refused)
	for _, o := range refused {
		f := finding{File: o.Position.File, Line: o.Position.Line, Finding: lint.Finding{
			Rule: rule.ID, Severity: rule.Severity, Object: lint.Object{Kind: cmp.Or(o.Kind, "object"), Namespace: o.Namespace, Name: o.Name},
			Message: printable.Text(o.Err.Error()), Why: rule.Why, Fix: rule.Fix,
		}}
		var invalid *apifield.Error
		if errors.As(o.Err, &invalid) {
			f.Field, f.Message = invalid.Field, printable.Text(invalid.ErrorBody())
		}
		r.Findings = append(r.Findings, f)
		if o.Policy && !slices.Contains(r.refused, f.Object) {
			r.refused = append(r.refused, f.Object)
		}
	}
	r.Refused = len(r.refused)
	r.Policies += r.Refused
	slices.SortStableFunc(r.Findings, compareFindings)
}

// mergeCopies makes findings about copies of an object one: overlays have what their base has, each
// in a namespace.
func (r *report) mergeCopies() {
	type place struct {
		file       string
		line       int
		rule, name string
		field      string
		message    string
	}
	first := map[place]int{}
	var merged []finding
	for _, f := range r.Findings {
		key := place{f.File, f.Line, f.Rule, f.Kind + " " + f.Name, f.Field, withoutNamespace(f.Message, f.Namespace)}
		i, known := first[key]
		if known && f.Line > 0 {
			merged[i].also = append(merged[i].also, f.Namespace)
			continue
		}
		first[key] = len(merged)
		merged = append(merged, f)
	}
	r.Findings = merged
}

// withoutNamespace returns a text without the words that are the namespace.
func withoutNamespace(text, namespace string) string {
	inName := func(r rune) bool { return r == '-' || r == '.' || unicode.IsLetter(r) || unicode.IsDigit(r) }
	words := strings.FieldsFunc(text, func(r rune) bool { return !inName(r) })
	for i, word := range words {
		if strings.TrimSuffix(word, ".") == namespace {
			words[i] = ""
		}
	}
	return strings.Join(words, " ")
}

// notHonoured returns the agents' findings and stores their reasons.
func notHonoured(in lint.Input, reasons map[lint.Finding]string) []lint.Finding {
	c := reachability.New(clusterstate.Input{Features: in.Features, Namespaces: in.Namespaces, CIDRGroups: in.CIDRGroups, Policies: in.Policies})
	var all []lint.Finding
	for _, f := range c.Findings() {
		rule := lint.RuleNamed(lint.NotHonoured)
		if f.Reason == policy.InvalidAnnotation {
			rule = lint.RuleNamed(lint.Annotation)
		}
		found := lint.Finding{
			Rule: rule.ID, Severity: rule.Severity, Object: lint.Object{Kind: f.Policy.Kind, Namespace: f.Policy.Namespace, Name: f.Policy.Name},
			Field: f.Field.String(), Message: f.Message, Why: rule.Why, Fix: rule.Fix,
		}
		if f.Reason == policy.UnknownCIDRGroup && in.Partial {
			found.Severity = lint.Info // the cluster may have it
		}
		reasons[found] = f.Reason
		all = append(all, found)
	}
	return all
}

// findingLine returns a finding of the agents as one line.
func findingLine(f reachability.Finding) string {
	o := lint.Object{Kind: f.Kind, Namespace: f.Namespace, Name: f.Name}
	return fmt.Sprintf("%v: %s: %s: %s", o, f.Field, f.Reason, f.Message)
}

func objectOf(o compile.Object) lint.Object {
	return lint.Object{Kind: compile.KindOf(o).Name, Namespace: o.GetNamespace(), Name: o.GetName()}
}

// locate adds the lines to findings.
func locate(findings []lint.Finding, files *clusterfiles.Objects) []lint.Located {
	all := make([]lint.Located, 0, len(findings))
	for _, f := range findings {
		located := lint.Located{Finding: f}
		if files != nil {
			located.Line = position(files, f.Object, f.Field).Line
		}
		all = append(all, located)
	}
	return all
}

// position returns the position of a field or of its innermost parent that the file has. It
// is the zero Position if the object is not from a file.
func position(files *clusterfiles.Objects, o lint.Object, field string) clusterfiles.Position {
	p, _ := files.Position(o.Kind, o.Namespace, o.Name, field)
	return p
}

func place(f lint.Located, files *clusterfiles.Objects, reason string) finding {
	placed := finding{Line: f.Line, Finding: f.Finding, Reason: reason}
	if files != nil {
		pos := position(files, f.Object, f.Field)
		placed.File, placed.Line = pos.File, cmp.Or(f.Line, pos.Line)
	}
	return placed
}

// ignores returns the requests of policies, Ingresses, routes, Services and namespaces to ignore
// findings.
func ignores(in lint.Input, files *clusterfiles.Objects) []lint.Ignore {
	var all []lint.Ignore
	add := func(o lint.Object, meta metav1.Object) {
		all = append(all, lint.IgnoredByAnnotation(o, meta)...)
		all = append(all, ignoredByComment(o, files)...)
	}
	for _, p := range in.Policies {
		add(objectOf(p), p)
	}
	for _, x := range in.Exposing {
		add(lint.Object{Kind: x.GetKind(), Namespace: x.GetNamespace(), Name: x.GetName()}, x)
	}
	for _, s := range in.Services {
		add(lint.Object{Kind: workloads.Service, Namespace: s.Namespace, Name: s.Name}, s)
	}
	for _, ns := range in.Namespaces {
		add(lint.Object{Kind: compile.KindNamespace.Name, Name: ns.Name}, ns)
	}
	return all
}

// ignoredByComment returns the requests in an object's comments. Comments above the object
// are about all of it.
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

// keep removes findings about other namespaces.
func (r *report) keep(namespace string) {
	inOtherNamespace := func(f finding) bool {
		return f.Namespace != namespace && (f.Kind != compile.KindNamespace.Name || f.Name != namespace)
	}
	r.Findings = slices.DeleteFunc(r.Findings, inOtherNamespace)
	r.Ignored = slices.DeleteFunc(r.Ignored, inOtherNamespace)
	inOther := func(o lint.Object) bool { return o.Namespace != namespace }
	r.refused = slices.DeleteFunc(r.refused, inOther)
	r.Refused = len(r.refused)
	r.Policies = r.Refused
	for _, p := range r.policies {
		if p.GetNamespace() == namespace {
			r.Policies++
		}
	}
}

// prefix returns "file:line: ", or "" if there is no file.
func (f *finding) prefix() string {
	switch {
	case f.File == "":
		return ""
	case f.Line == 0:
		return f.File + ": "
	}
	return fmt.Sprintf("%s:%d: ", f.File, f.Line)
}

// subject returns the object and the field.
func (f *finding) subject() string {
	object := f.Object.String()
	if len(f.also) > 0 {
		object += " (also in " + shorten(f.also) + ")"
	}
	return strings.TrimSpace(object + " " + f.Field)
}

// writeText writes each finding and its fix on a line. The reason follows the first finding
// of each rule.
func writeText(w io.Writer, r *report) error {
	var b strings.Builder
	explained := map[string]bool{}
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%s%v: %s: %s [%s]\n", f.prefix(), f.Severity, f.subject(), f.Message, f.Rule)
		if !explained[f.Rule] {
			fmt.Fprintf(&b, "    %s\n", f.Why)
		}
		explained[f.Rule] = true
		fmt.Fprintf(&b, "    Fix: %s\n", f.Fix)
	}
	fmt.Fprintf(&b, "%s in %s%s\n", words.Count(len(r.Findings), "finding", "findings"), r.counted(), r.bySeverity())
	_, err := io.WriteString(w, b.String())
	return err
}

// counted returns the number of policies, "12 policies, 1 refused".
func (r *report) counted() string {
	text := words.Count(r.Policies, "policy", "policies")
	if r.Refused > 0 {
		text += fmt.Sprintf(", %d refused", r.Refused)
	}
	return text
}

var plurals = map[lint.Severity]string{lint.Error: "errors", lint.Warning: "warnings", lint.Info: "infos"}

// bySeverity counts the findings.
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
			parts = append(parts, words.Count(n, s.String(), plurals[s]))
		}
	}
	if n := len(r.Ignored); n > 0 {
		parts = append(parts, fmt.Sprintf("%d ignored", n))
	}
	if r.Known > 0 {
		parts = append(parts, fmt.Sprintf("%d known", r.Known))
	}
	if len(parts) == 0 {
		return ""
	}
	return ": " + strings.Join(parts, ", ")
}

// writeGitHub writes commands that GitHub shows next to the lines of a pull request.
func writeGitHub(w io.Writer, r *report) error {
	levels := map[lint.Severity]string{lint.Error: "error", lint.Warning: "warning", lint.Info: "notice"}
	var b strings.Builder
	for _, f := range r.Findings {
		b.WriteString(annotation(levels[f.Severity], filepath.ToSlash(f.File), f.Line, f.Rule, f.subject()+": "+f.Message+"\n"+f.Why+"\nFix: "+f.Fix))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeJUnit writes a case for each finding, which fails from a severity on, and one for each
// policy without findings.
func writeJUnit(w io.Writer, r *report, fails lint.Severity) error {
	suite := junit.Suite{Name: "kubectl netpol check"}
	found := map[lint.Object]bool{}
	for _, f := range r.Findings {
		found[f.Object] = true
		c := junit.Case{Class: f.File, Name: f.subject() + " [" + f.Rule + "]", File: f.File}
		if f.Severity >= fails {
			c.Failure = f.prefix() + f.Message + "\n" + f.Why + "\nFix: " + f.Fix
		}
		suite.Cases = append(suite.Cases, c)
	}
	for _, p := range r.policies {
		if o := objectOf(p); !found[o] {
			suite.Cases = append(suite.Cases, junit.Case{Name: o.String()})
		}
	}
	return junit.Write(w, suite)
}
