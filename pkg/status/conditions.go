package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// The types of conditions, as the API defined them for the status of a
// NetworkPolicy in Kubernetes 1.24 to 1.27.
const (
	Accepted       = "Accepted"       // read, and enforced
	PartialFailure = "PartialFailure" // enforced in part; what is not fails closed
	Failure        = "Failure"        // not enforced
)

// The reasons of conditions that tell of no problem. All others are those of
// findings, see package policy.
const (
	PolicyAccepted = "PolicyAccepted"
	NoFailure      = "NoFailure"
)

// maxMessage is the most bytes of a condition's message. Policies are listed by
// the thousand, and an annotation holds three messages.
const maxMessage = 1024

// severity orders reasons, the worst first: what is wrong wherever the policy is
// used comes before what only this implementation lacks.
var severity = []string{
	policy.InvalidSelector,
	policy.InvalidPeer,
	policy.InvalidCIDR,
	policy.InvalidPort,
	policy.UnsupportedProtocol,
	policy.FeatureNotSupported,
}

// Conditions returns the three conditions of a spec of that generation, of which
// findings could not be honoured. They are always all three, so that none of an
// earlier generation remains. The times are not set.
func Conditions(generation int64, findings []policy.Finding) []metav1.Condition {
	accepted := condition(Accepted, metav1.ConditionTrue, PolicyAccepted, "The whole spec is enforced.")
	partial := condition(PartialFailure, metav1.ConditionFalse, NoFailure, "No problem was found.")
	failure := condition(Failure, metav1.ConditionFalse, NoFailure, "No problem was found.")

	void := slices.DeleteFunc(slices.Clone(findings), func(f policy.Finding) bool { return !f.Whole })
	lines := describe(findings)
	switch {
	case len(void) > 0:
		accepted = condition(Accepted, metav1.ConditionFalse, worst(void), "Nothing is enforced as written, see Failure.")
		partial.Message = "The policy fails as a whole, see Failure."
		failure = condition(Failure, metav1.ConditionTrue, worst(void), join(lines))
	case len(findings) > 0:
		accepted.Message = fmt.Sprintf("Enforced with %s, see PartialFailure.", problems(len(lines)))
		partial = condition(PartialFailure, metav1.ConditionTrue, worst(findings), join(lines))
		failure.Message = "The policy is enforced in part."
	}
	conditions := []metav1.Condition{accepted, partial, failure}
	for i := range conditions {
		conditions[i].ObservedGeneration = generation
	}
	return conditions
}

func condition(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message}
}

func problems(n int) string {
	if n == 1 {
		return "1 problem"
	}
	return fmt.Sprintf("%d problems", n)
}

// worst returns the first reason by severity. A reason that has no place there
// comes last, by name.
func worst(findings []policy.Finding) string {
	rank := func(reason string) int {
		if i := slices.Index(severity, reason); i >= 0 {
			return i
		}
		return len(severity)
	}
	return slices.MinFunc(findings, func(a, b policy.Finding) int {
		return cmp.Or(cmp.Compare(rank(a.Reason), rank(b.Reason)), cmp.Compare(a.Reason, b.Reason))
	}).Reason
}

// describe returns "field: message" of each finding once, in the order given,
// which is that of the spec.
func describe(findings []policy.Finding) []string {
	var lines []string
	seen := sets.New[string]()
	for _, f := range findings {
		if line := f.Field + ": " + f.Message; !seen.Has(line) {
			seen.Insert(line)
			lines = append(lines, line)
		}
	}
	return lines
}

// join makes one message of lines, of at most maxMessage bytes. Lines that do not
// fit are counted; at least a part of the first is there.
func join(lines []string) string {
	if whole := strings.Join(lines, ". ") + "."; len(whole) <= maxMessage {
		return whole
	}
	const room = maxMessage - len(". And 1000000 more.")
	message, shown := cut(lines[0], room), 1
	for shown < len(lines) && len(message)+len(". ")+len(lines[shown]) <= room {
		message += ". " + lines[shown]
		shown++
	}
	if shown == len(lines) {
		return message + "."
	}
	return fmt.Sprintf("%s. And %d more.", message, len(lines)-shown)
}

// cut returns the first bytes of s, at most n, without breaking a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	const mark = "…"
	n -= len(mark)
	for !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + mark
}

// carry sets the times of conditions: that of the old one of the same type where
// the status is the same, and else now.
func carry(old, conditions []metav1.Condition, now metav1.Time) []metav1.Condition {
	conditions = slices.Clone(conditions)
	for i := range conditions {
		c := &conditions[i]
		c.LastTransitionTime = now
		for _, was := range old {
			if was.Type == c.Type && was.Status == c.Status && !was.LastTransitionTime.IsZero() {
				c.LastTransitionTime = was.LastTransitionTime
			}
		}
	}
	return conditions
}

// same tells whether two lists say the same, in any order and at any time.
func same(a, b []metav1.Condition) bool {
	return slices.Equal(timeless(a), timeless(b))
}

func timeless(conditions []metav1.Condition) []metav1.Condition {
	conditions = slices.Clone(conditions)
	for i := range conditions {
		conditions[i].LastTransitionTime = metav1.Time{}
	}
	slices.SortFunc(conditions, func(a, b metav1.Condition) int { return cmp.Compare(a.Type, b.Type) })
	return conditions
}

// troubleFirst puts a condition that tells of a problem before the others. Of a
// long value kubectl describe shows the beginning.
func troubleFirst(conditions []metav1.Condition) []metav1.Condition {
	trouble := func(c metav1.Condition) bool { return c.Type != Accepted && c.Status == metav1.ConditionTrue }
	i := max(0, slices.IndexFunc(conditions, trouble))
	return slices.Concat(conditions[i:i+1], conditions[:i], conditions[i+1:])
}

// withPrefix puts "prefix/" before each type, unless prefix is empty.
func withPrefix(prefix string, conditions []metav1.Condition) []metav1.Condition {
	conditions = slices.Clone(conditions)
	for i := range conditions {
		conditions[i].Type = typeName(prefix, conditions[i].Type)
	}
	return conditions
}

// withoutPrefix undoes withPrefix for one condition. It reports whether the
// condition is one of ours.
func withoutPrefix(prefix string, c metav1.Condition) (metav1.Condition, bool) {
	for _, kind := range []string{Accepted, PartialFailure, Failure} {
		if c.Type == typeName(prefix, kind) {
			c.Type = kind
			return c, true
		}
	}
	return c, false
}

func typeName(prefix, kind string) string {
	if prefix == "" {
		return kind
	}
	return prefix + "/" + kind
}
