package clusterfiles

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/words"
)

// mostWarnings is the maximum number of warnings among the notes.
const mostWarnings = 20

// Notes returns one line for each thing that was skipped or assumed, and for each warning.
func (o *Objects) Notes() []string {
	var notes []string
	note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	for _, w := range o.Warnings[:min(mostWarnings, len(o.Warnings))] {
		note("Warning: %s", w)
	}
	if more := len(o.Warnings) - mostWarnings; more > 0 {
		note("Warning: %d more; --strict shows all, as errors", more)
	}
	for _, pattern := range o.Unmatched {
		note("Excluded nothing: no name or path in the directories matches %q", pattern)
	}
	if len(o.Replaced) > 0 {
		note("Replaced by what a later path has of the same name: %s", shorten(o.Replaced))
	}
	if len(o.Skipped) > 0 {
		note("Passed over: %s", join(o.Skipped, ", "))
	}
	if n := len(o.AssumedPods); n > 0 {
		note("Assumed: one pod for each of %s, as its template has it", words.Count(n, "workload", "workloads"))
	}
	if names := o.namespacesOfPods(); len(names) > 0 {
		note("Assumed: namespaces without an object have only the label kubernetes.io/metadata.name: %s", shorten(names))
	}
	if names := o.AssumedNodes; len(names) > 0 {
		note("Assumed: nodes without an object have only the addresses that their pods name (status.hostIPs): %s", shorten(names))
	}
	return notes
}

// namespacesOfPods returns the assumed namespaces that can affect a decision.
func (o *Objects) namespacesOfPods() []string {
	withPods := map[string]bool{}
	for _, p := range o.Pods {
		withPods[p.Namespace] = true
	}
	return slices.DeleteFunc(slices.Clone(o.AssumedNamespaces), func(name string) bool { return !withPods[name] })
}

// plural returns the plural of a noun, such as the name of a kind.
func plural(noun string) string {
	ends := func(endings ...string) bool {
		return slices.ContainsFunc(endings, func(e string) bool { return strings.HasSuffix(noun, e) })
	}
	switch {
	case strings.HasSuffix(noun, "Endpoints"):
		return noun
	case ends("s", "x", "ch", "sh"):
		return noun + "es"
	case ends("y") && !ends("ay", "ey", "oy", "uy"):
		return strings.TrimSuffix(noun, "y") + "ies"
	}
	return noun + "s"
}

func join[T fmt.Stringer](values []T, separator string) string {
	var s []string
	for _, v := range values {
		s = append(s, v.String())
	}
	return strings.Join(s, separator)
}

// shorten lists the first few names.
func shorten(names []string) string { return words.Few(names, 8, ", ") }

// compareText orders texts case-insensitively.
func compareText(a, b string) int {
	return cmp.Or(cmp.Compare(strings.ToLower(a), strings.ToLower(b)), cmp.Compare(a, b))
}
