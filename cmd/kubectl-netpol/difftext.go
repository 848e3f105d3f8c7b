package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/words"
)

// nothingChanges says so, as far as everything was compared.
func nothingChanges(d *reachability.Difference, others *otherChanges) string {
	if d.Whole() && len(others.limits) == 0 && len(others.notCompared) == 0 {
		return "Nothing changes.\n"
	}
	return "Nothing that was compared changes.\n"
}

// printDifference prints the answer.
func printDifference(w io.Writer, d *reachability.Difference, others *otherChanges) error {
	var out strings.Builder
	if len(d.Changes) == 0 && others.none() {
		out.WriteString(nothingChanges(d, others))
	}
	for i := range d.Changes {
		fmt.Fprintf(&out, "%s:\n", join(d.Changes[i].Traffic))
		for _, l := range changeLines(&d.Changes[i]) {
			fmt.Fprintf(&out, "  %s: %s -> %s\n", l.what, shorten(l.from), shorten(l.to))
			if len(l.by) > 0 {
				fmt.Fprintf(&out, "    by %s\n", shorten(l.by))
			}
		}
	}
	if !others.none() {
		out.WriteString("By Ingresses, routes, Services and host ports:\n" + exposureChangeLines(others.exposures, "  ") + serviceChangeLines(others.services, "  "))
	}
	fmt.Fprintf(&out, "\n%s\n", strings.Join(comparedLines(d, others), "\n"))
	_, err := io.WriteString(w, out.String())
	return err
}

// printDifferenceMarkdown prints the answer for a comment on a pull request, including the
// notes that otherwise go to standard error.
func printDifferenceMarkdown(w io.Writer, d *reachability.Difference, others *otherChanges, notes []string) error {
	var out strings.Builder
	out.WriteString("### Network policies: connections that change\n\n")
	switch {
	case len(d.Changes) == 0 && others.none():
		out.WriteString(nothingChanges(d, others))
	case len(d.Changes) > 0:
		out.WriteString("| | from | to | traffic | by |\n| --- | --- | --- | --- | --- |\n")
	}
	for i := range d.Changes {
		for _, l := range changeLines(&d.Changes[i]) {
			fmt.Fprintf(&out, "| %s | %s | %s | %s | %s |\n", l.what, shorten(l.from), shorten(l.to), join(d.Changes[i].Traffic), shorten(l.by))
		}
	}
	out.WriteString("\n" + exposureChangeLines(others.exposures, "- ") + serviceChangeLines(others.services, "- "))
	for _, note := range append(notes, comparedLines(d, others)...) {
		fmt.Fprintf(&out, "- %s\n", note)
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// comparedLines says what was compared and what was not.
func comparedLines(d *reachability.Difference, others *otherChanges) []string {
	compared := fmt.Sprintf("Compared: %s, between %s", join(d.Checked), words.Count(d.Pods, "pod", "pods"))
	if n := len(d.NewPods); n > 0 {
		compared += " and a new pod without labels"
		if n > 1 {
			compared += fmt.Sprintf(" in each of %d namespaces", n)
		}
	}
	if len(d.OnlyAfter) > 0 {
		compared += fmt.Sprintf(", with %s added", shorten(d.OnlyAfter))
	}
	if len(d.OnlyBefore) > 0 {
		compared += fmt.Sprintf(", with %s removed", shorten(d.OnlyBefore))
	}
	if len(d.Nodes) > 0 {
		compared += fmt.Sprintf(", with %s of nodes", shorten(d.Nodes))
	}
	if d.AllOutside {
		compared += ", and with addresses outside"
	} else if len(d.External) > 0 {
		compared += fmt.Sprintf(", and with %s outside", shorten(d.External))
	}
	lines := []string{compared + "."}
	for _, address := range slices.Sorted(maps.Keys(d.Services)) {
		lines = append(lines, fmt.Sprintf("%s is behind service %s.", address, d.Services[address]))
	}
	for _, l := range []struct {
		what  string
		names []string
	}{
		{"Not compared: what is allowed by domain names, which only agents know", d.DomainRules},
		{"Not compared", d.NotCompared},
	} {
		if len(l.names) > 0 {
			lines = append(lines, l.what+": "+shorten(l.names))
		}
	}
	for _, text := range others.notCompared {
		lines = append(lines, "Not compared: "+text)
	}
	return lines
}

// join lists traffic, with adjacent ranges joined.
func join(spans []reachability.PortRange) string {
	var names []string
	for _, s := range reachability.JoinPortRanges(spans) {
		names = append(names, s.String())
	}
	return strings.Join(names, "; ")
}

// changeLine is a set of connections with the same change.
type changeLine struct {
	what     string
	from, to []string
	by       []string // the policies that did it
}

// changeLines returns the lines of a change. Sides with the same changes share a line.
func changeLines(c *reachability.Change) []changeLine {
	var lines []changeLine
	for _, m := range []struct {
		what  string
		cells *reachability.Matrix
	}{{"no longer allowed", c.Lost}, {"newly allowed", c.Gained}} {
		for _, l := range matrixLines(m.cells, c.By) {
			l.what, l.from, l.to = m.what, joined(l.from, c.Outside), joined(l.to, c.Outside)
			lines = append(lines, l)
		}
	}
	return lines
}

// joined returns names with "outside" in the place of the addresses outside, if all of these are
// among them.
func joined(names, outside []string) []string {
	isOutside := func(name string) bool { return slices.Contains(outside, name) }
	others := slices.DeleteFunc(slices.Clone(names), isOutside)
	if len(outside) == 0 || len(names)-len(others) < len(outside) {
		return names
	}
	return append(others, "outside")
}

// distinct returns the texts in order, each once.
func distinct(texts []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(texts)))
}

// matrixLines returns the cells of m. The cell of an endpoint with itself is about another
// pod like it.
func matrixLines(m *reachability.Matrix, policies func(row, column int) []string) []changeLine {
	var lines []changeLine
	index := map[string]int{}
	for i := range m.From {
		index[m.From[i].Label()] = i
	}
	groups := m.Groups()
	for _, from := range groups {
		var to, by []string
		for _, g := range groups {
			switch {
			case g.Row == from.Row && len(g.Members) == 1 || !m.AllowedBetween(from, g):
			case g.Row == from.Row:
				to = append(to, "each other")
				by = append(by, policies(g.Row, index[g.Members[1].Label()])...)
			default:
				to = append(to, members(g)...)
				for _, server := range g.Members { // each end has its own policies
					by = append(by, policies(from.Row, index[server.Label()])...)
				}
				for _, client := range from.Members[1:] {
					by = append(by, policies(index[client.Label()], g.Row)...)
				}
			}
		}
		if len(to) > 0 {
			lines = append(lines, changeLine{from: members(from), to: to, by: distinct(by)})
		}
	}
	twins := changeLine{to: []string{"another pod like it"}}
	for i := range m.From {
		if m.Allowed(i, i) {
			twins.from, twins.by = append(twins.from, m.From[i].Label()), append(twins.by, policies(i, i)...)
		}
	}
	if len(twins.from) > 0 {
		twins.by = distinct(twins.by)
		lines = append(lines, twins)
	}
	return lines
}

func members(g reachability.Group) []string {
	var names []string
	for _, s := range g.Members {
		names = append(names, s.Label())
	}
	return names
}

// mostNames is the maximum number of names in a line.
const mostNames = 8

func shorten(names []string) string { return words.Few(names, mostNames, ", ") }
