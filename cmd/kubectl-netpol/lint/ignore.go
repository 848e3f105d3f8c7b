package lint

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/base/printable"
)

// IgnoreAnnotation is the prefix of annotations that ignore findings about their object.
// The rest of the key is the rule's ID, the value is the reason.
const IgnoreAnnotation = "kube-network-policies.x-k8s.io/ignore-"

// ignoreMark is the prefix of comments that ignore findings.
const ignoreMark = "netpol:ignore"

// Ignore is an author's request to ignore the findings of a rule about an object.
type Ignore struct {
	Object Object
	Rule   string
	Reason string
	// Whole requests cover the whole object. The others cover the first line from Line to Last
	// that has such findings.
	Whole bool
	Line  int    // of the comment
	Last  int    // the next line without a comment
	Field string // of a request by annotation
}

// ParseComment parses the text of a comment, with or without the comment sign. ok is false
// for comments that ignore nothing.
func ParseComment(text string) (rule, reason string, ok bool) {
	text = strings.TrimSpace(strings.TrimLeft(strings.TrimSpace(text), "#"))
	rest, ok := strings.CutPrefix(text, ignoreMark)
	if !ok || rest != "" && rest[0] != ' ' && rest[0] != '\t' {
		return "", "", false
	}
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return "", "", true
	}
	return fields[0], strings.Join(fields[1:], " "), true
}

// IgnoredByAnnotation returns the requests in the annotations of an object.
func IgnoredByAnnotation(o Object, m metav1.Object) []Ignore {
	var all []Ignore
	annotations := m.GetAnnotations()
	for _, name := range slices.Sorted(maps.Keys(annotations)) {
		if rule, ok := strings.CutPrefix(name, IgnoreAnnotation); ok {
			all = append(all, Ignore{Object: o, Rule: rule, Reason: strings.TrimSpace(annotations[name]), Whole: true, Field: "metadata.annotations"})
		}
	}
	return all
}

// problem returns what is wrong with the request itself, or "".
func (i *Ignore) problem() string {
	switch {
	case i.Rule == "":
		return "the comment names no rule"
	case RuleNamed(i.Rule) == nil:
		known := make([]string, 0, len(Rules))
		for _, r := range Rules {
			known = append(known, r.ID)
		}
		if near := nearest(i.Rule, known); near != "" {
			return fmt.Sprintf("there is no rule %q; near it: %s", i.Rule, near)
		}
		return fmt.Sprintf("there is no rule %q", i.Rule)
	case i.Reason == "":
		return fmt.Sprintf("%s is ignored without a reason", i.Rule)
	}
	return ""
}

// Located is a finding with its line, zero if that is not known.
type Located struct {
	Finding
	Line int
	// Reason is why the finding is ignored.
	Reason string
}

// Apply splits findings into remaining and ignored ones. A faulty request becomes a finding
// of IgnoreComment and remains. So does a request that matches no finding, unless its rule
// is disabled.
func Apply(findings []Located, ignores []Ignore, disabled []string) (remaining, ignored []Located) {
	marked := make([]bool, len(findings))
	for n := range ignores {
		i := &ignores[n]
		problem := i.problem()
		if problem == "" && i.mark(findings, marked) == 0 && !slices.Contains(disabled, i.Rule) {
			problem = i.Rule + " is ignored, and there is no such finding"
		}
		if problem != "" {
			r := RuleNamed(IgnoreComment)
			remaining = append(remaining, Located{Line: i.Line, Finding: Finding{
				Rule: r.ID, Severity: r.Severity, Object: i.Object, Field: i.Field, Message: printable.Text(problem), Why: r.Why, Fix: r.Fix,
			}})
		}
	}
	for n, f := range findings {
		if marked[n] {
			ignored = append(ignored, f)
		} else {
			remaining = append(remaining, f)
		}
	}
	return remaining, ignored
}

// mark marks the findings that i ignores and returns their number.
func (i *Ignore) mark(findings []Located, marked []bool) int {
	count := 0
	for line := i.Line; line <= i.Last; line++ {
		for n := range findings {
			f := &findings[n]
			if f.Rule == i.Rule && f.Object == i.Object && (i.Whole || f.Line == line) {
				marked[n], f.Reason = true, i.Reason
				count++
			}
		}
		if count > 0 {
			break
		}
	}
	return count
}
