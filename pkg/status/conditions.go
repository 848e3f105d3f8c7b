package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// Types of conditions, as the API defined them for the status of NetworkPolicy in Kubernetes
// 1.24 to 1.27.
const (
	Accepted       = "Accepted"       // enforced, at least in part
	PartialFailure = "PartialFailure" // enforced in part; the other parts fail closed
	Failure        = "Failure"        // not enforced
	// Enforced is False while the policy is audited. Otherwise it says whether the policy is in force
	// on all nodes, if the agents are asked and the condition is stored.
	Enforced = "Enforced"
	// removedType is a condition that versions up to 0.2 wrote. It is ours, and therefore removed.
	removedType = "Denials"
)

// Reasons of conditions that report no problem. Other reasons come from findings, see package
// policy.
const (
	PolicyAccepted = "PolicyAccepted"
	NoFailure      = "NoFailure"
)

// Audit is the reason of Enforced, and of the Event when a policy becomes audited.
const Audit = "Audit"

const auditMessage = "The policy is audited: what it would deny passes, and is counted and logged."

// maxMessage is the maximum length of a condition's message in bytes. Lists return
// thousands of policies, and an annotation holds three messages.
const maxMessage = 1024

// severity orders reasons, the most severe first: faults of the policy come before features
// that this implementation lacks.
var severity = []string{
	policy.InvalidSelector,
	policy.InvalidPeer,
	policy.InvalidCIDR,
	policy.InvalidPort,
	policy.UnsupportedProtocol,
	policy.InvalidEnforcement,
	policy.InvalidAnnotation,
	policy.FeatureNotSupported,
}

// Conditions returns the three conditions of a spec with this generation and these findings.
// All three are always returned, so that none of an earlier generation remains. Audited
// policies get a fourth one, Enforced. Transition times are not set.
func Conditions(generation int64, findings []policy.Finding, audited bool) []metav1.Condition {
	accepted := condition(Accepted, metav1.ConditionTrue, PolicyAccepted, "The whole spec can be enforced.")
	partial := condition(PartialFailure, metav1.ConditionFalse, NoFailure, "No problem was found.")
	failure := condition(Failure, metav1.ConditionFalse, NoFailure, "No problem was found.")

	fatal := slices.DeleteFunc(slices.Clone(findings), func(f policy.Finding) bool { return !f.Whole })
	lines := describe(findings)
	switch {
	case len(fatal) > 0:
		accepted = condition(Accepted, metav1.ConditionFalse, mostSevere(fatal), "The policy is not enforced, see Failure.")
		partial.Message = "The policy is not enforced at all, see Failure."
		failure = condition(Failure, metav1.ConditionTrue, mostSevere(fatal), join(lines))
	case len(findings) > 0:
		accepted.Message = fmt.Sprintf("Enforced with %s, see PartialFailure.", problems(len(lines)))
		partial = condition(PartialFailure, metav1.ConditionTrue, mostSevere(findings), join(lines))
		failure.Message = "The policy is enforced in part, see PartialFailure."
	}
	conditions := []metav1.Condition{accepted, partial, failure}
	if audited {
		switch {
		case len(findings) == 0:
			conditions[0].Message = "The whole spec is evaluated, and not enforced, see Enforced."
		case len(fatal) == 0:
			conditions[0].Message = fmt.Sprintf("Evaluated with %s and not enforced, see PartialFailure and Enforced.", problems(len(lines)))
		}
		conditions = append(conditions, condition(Enforced, metav1.ConditionFalse, Audit, auditMessage))
	}
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

// mostSevere returns the first reason by severity. Reasons that are not in severity come
// last, by name.
func mostSevere(findings []policy.Finding) string {
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

// describe returns "field: message" of each finding, without duplicates, in the given order,
// which is that of the spec.
func describe(findings []policy.Finding) []string {
	var lines []string
	seen := sets.New[string]()
	for _, f := range findings {
		if line := f.Field.String() + ": " + f.Message; !seen.Has(line) {
			seen.Insert(line)
			lines = append(lines, line)
		}
	}
	return lines
}

// join returns lines as one message of at most maxMessage bytes. It counts lines that do not
// fit, but always includes the beginning of the first line.
func join(lines []string) string {
	if whole := strings.Join(lines, ". ") + "."; len(whole) <= maxMessage {
		return whole
	}
	const room = maxMessage - len(". And 1000000 more.")
	message, shown := truncate(lines[0], room), 1
	for shown < len(lines) && len(message)+len(". ")+len(lines[shown]) <= room {
		message += ". " + lines[shown]
		shown++
	}
	if shown == len(lines) {
		return message + "."
	}
	return fmt.Sprintf("%s. And %d more.", message, len(lines)-shown)
}

// truncate returns at most the first n bytes of s, without splitting a character.
func truncate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	const ellipsis = "…"
	n -= len(ellipsis)
	for !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + ellipsis
}

// onlyAccepts reports whether conditions say no more than that the policy is enforced as written.
func onlyAccepts(conditions []metav1.Condition) bool {
	return problem(conditions) == nil && enforcedOf(conditions) == nil
}

// withoutNoFailure returns conditions without those that report no failure.
func withoutNoFailure(conditions []metav1.Condition) []metav1.Condition {
	return slices.DeleteFunc(slices.Clone(conditions), func(c metav1.Condition) bool { return c.Reason == NoFailure })
}

// withTimes returns conditions with transition times: the old one if a condition of the same
// type has the same status, else now.
func withTimes(old, conditions []metav1.Condition, now metav1.Time) []metav1.Condition {
	conditions = slices.Clone(conditions)
	for i := range conditions {
		c := &conditions[i]
		c.LastTransitionTime = now
		for _, o := range old {
			if o.Type == c.Type && o.Status == c.Status && !o.LastTransitionTime.IsZero() {
				c.LastTransitionTime = o.LastTransitionTime
			}
		}
	}
	return conditions
}

// sameConditions reports whether two lists are equal, ignoring order and transition times.
func sameConditions(a, b []metav1.Condition) bool {
	return slices.Equal(normalized(a), normalized(b))
}

func normalized(conditions []metav1.Condition) []metav1.Condition {
	conditions = slices.Clone(conditions)
	for i := range conditions {
		conditions[i].LastTransitionTime = metav1.Time{}
	}
	slices.SortFunc(conditions, func(a, b metav1.Condition) int { return cmp.Compare(a.Type, b.Type) })
	return conditions
}

// problem returns Enforced if the policy is audited or not in force on a node, else the condition that
// reports problems, nil if the policy is enforced as written.
func problem(conditions []metav1.Condition) *metav1.Condition {
	for _, reports := range []func(metav1.Condition) bool{
		func(c metav1.Condition) bool { return c.Type == Enforced && c.Status == metav1.ConditionFalse },
		func(c metav1.Condition) bool {
			return c.Type != Accepted && c.Type != Enforced && c.Status == metav1.ConditionTrue
		},
	} {
		if i := slices.IndexFunc(conditions, reports); i >= 0 {
			return &conditions[i]
		}
	}
	return nil
}

// withPrefix adds "prefix/" to each type, unless prefix is empty.
func withPrefix(prefix string, conditions []metav1.Condition) []metav1.Condition {
	conditions = slices.Clone(conditions)
	for i := range conditions {
		conditions[i].Type = typeName(prefix, conditions[i].Type)
	}
	return conditions
}

// withoutPrefix removes the prefix from the type of one condition. It reports
// whether the condition is one of ours.
func withoutPrefix(prefix string, c metav1.Condition) (metav1.Condition, bool) {
	for _, kind := range []string{Accepted, PartialFailure, Failure, Enforced, removedType} {
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
