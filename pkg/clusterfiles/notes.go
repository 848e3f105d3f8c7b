package clusterfiles

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Notes returns what is to be said about the reading, a line each: what has been passed over
// and what is assumed.
func (o *Objects) Notes() []string {
	var notes []string
	note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	if len(o.Skipped) > 0 {
		note("Passed over: %s", list(o.Skipped))
	}
	if n := len(o.AssumedPods); n > 0 {
		note("Assumed: one pod for each of %s, as its template has it", count(n, "workload", "workloads"))
	}
	if n := len(o.Unaddressed); n > 0 {
		note("Assumed: addresses of %s for %s; nothing else in the files has such an address", join(o.AssumedAddresses), count(n, "pod", "pods"))
	}
	if names := o.namespacesOfPods(); len(names) > 0 {
		note("Assumed: namespaces without an object have only the label kubernetes.io/metadata.name: %s", shorten(names))
	}
	if names := o.AssumedNodes; len(names) > 0 {
		note("Assumed: nodes without an object have only the addresses that their pods name (status.hostIPs): %s", shorten(names))
	}
	return notes
}

// namespacesOfPods returns the assumed namespaces that matter to a decision.
func (o *Objects) namespacesOfPods() []string {
	return slices.DeleteFunc(slices.Clone(o.AssumedNamespaces), func(name string) bool {
		return !slices.ContainsFunc(o.Pods, func(p *corev1.Pod) bool { return p.Namespace == name })
	})
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// list names what has been passed over, with counts.
func list(skipped []Skipped) string {
	var items []string
	for _, s := range skipped {
		items = append(items, fmt.Sprintf("%d %s", s.Count, s.What))
	}
	return strings.Join(items, ", ")
}

func join[T fmt.Stringer](values []T) string {
	var s []string
	for _, v := range values {
		s = append(s, v.String())
	}
	return strings.Join(s, " and ")
}

// shorten names the first few of names.
func shorten(names []string) string {
	const most = 8
	s := strings.Join(names[:min(most, len(names))], ", ")
	if more := len(names) - most; more > 0 {
		s += fmt.Sprintf(", and %d more", more)
	}
	return s
}

// compareText orders texts without regard to case.
func compareText(a, b string) int {
	return cmp.Or(cmp.Compare(strings.ToLower(a), strings.ToLower(b)), cmp.Compare(a, b))
}
