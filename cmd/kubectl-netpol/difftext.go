package main

import (
	"fmt"
	"io"
	"strings"

	"sigs.k8s.io/kube-network-policies/pkg/reachability"
)

func printDifference(w io.Writer, d *reachability.Difference) error {
	var out strings.Builder
	if len(d.Changes) == 0 {
		out.WriteString("Nothing changes.\n")
	}
	for i := range d.Changes {
		fmt.Fprintf(&out, "%s:\n", join(d.Changes[i].Traffic))
		for _, l := range changeLines(&d.Changes[i]) {
			fmt.Fprintf(&out, "  %s: %s -> %s\n", l.what, shorten(l.from), shorten(l.to))
		}
	}
	fmt.Fprintf(&out, "\n%s\n", strings.Join(comparedLines(d), "\n"))
	_, err := io.WriteString(w, out.String())
	return err
}

// printDifferenceMarkdown prints the answer for a comment on a pull request, with the notes
// that go to standard error otherwise.
func printDifferenceMarkdown(w io.Writer, d *reachability.Difference, notes []string) error {
	var out strings.Builder
	out.WriteString("### Network policies: connections that change\n\n")
	if len(d.Changes) == 0 {
		out.WriteString("Nothing changes.\n")
	} else {
		out.WriteString("| | from | to | traffic |\n| --- | --- | --- | --- |\n")
	}
	for i := range d.Changes {
		for _, l := range changeLines(&d.Changes[i]) {
			fmt.Fprintf(&out, "| %s | %s | %s | %s |\n", l.what, shorten(l.from), shorten(l.to), join(d.Changes[i].Traffic))
		}
	}
	out.WriteString("\n")
	for _, note := range append(notes, comparedLines(d)...) {
		fmt.Fprintf(&out, "- %s\n", note)
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// comparedLines say what was compared and what was not.
func comparedLines(d *reachability.Difference) []string {
	compared := fmt.Sprintf("Compared: %s, between %s", join(d.Checked), count(d.Pods, "pod", "pods"))
	if n := len(d.NewPods); n > 0 {
		compared += " and a new pod without labels"
		if n > 1 {
			compared += fmt.Sprintf(" in each of %d namespaces", n)
		}
	}
	if len(d.Nodes) > 0 {
		compared += fmt.Sprintf(", with %s of nodes", shorten(d.Nodes))
	}
	if len(d.External) > 0 {
		compared += fmt.Sprintf(", and with %s outside", shorten(d.External))
	}
	lines := []string{compared + "."}
	for _, l := range []struct {
		what  string
		names []string
	}{
		{"Not compared: what is allowed by domain names, which only agents know", d.DomainRules},
		{"Only before, not compared", d.OnlyBefore},
		{"Only after, not compared", d.OnlyAfter},
	} {
		if len(l.names) > 0 {
			lines = append(lines, l.what+": "+shorten(l.names))
		}
	}
	return lines
}

// join lists traffic, what follows each other as one.
func join(spans []reachability.PortRange) string {
	var names []string
	for _, s := range reachability.JoinPortRanges(spans) {
		names = append(names, s.String())
	}
	return strings.Join(names, "; ")
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// changeLine is connections that change alike.
type changeLine struct {
	what     string
	from, to []string
}

// changeLines returns the lines of a change, those of sides that change alike together.
func changeLines(c *reachability.Change) []changeLine {
	var lines []changeLine
	for _, m := range []struct {
		what  string
		cells *reachability.Matrix
	}{{"no longer allowed", c.Lost}, {"newly allowed", c.Gained}} {
		for _, l := range matrixLines(m.cells) {
			l.what = m.what
			lines = append(lines, l)
		}
	}
	return lines
}

// matrixLines returns the cells of m. A cell of an endpoint with itself is about another
// one like it.
func matrixLines(m *reachability.Matrix) []changeLine {
	var lines []changeLine
	groups := m.Groups()
	for _, from := range groups {
		var to []string
		for _, g := range groups {
			switch {
			case g.Row == from.Row && len(g.Members) == 1 || !m.AllowedBetween(from, g):
			case g.Row == from.Row:
				to = append(to, "each other")
			default:
				to = append(to, members(g)...)
			}
		}
		if len(to) > 0 {
			lines = append(lines, changeLine{from: members(from), to: to})
		}
	}
	var twins []string
	for i := range m.From {
		if m.Allowed(i, i) {
			twins = append(twins, m.From[i].Name)
		}
	}
	if len(twins) > 0 {
		lines = append(lines, changeLine{from: twins, to: []string{"another pod like it"}})
	}
	return lines
}

func members(g reachability.Group) []string {
	var names []string
	for _, s := range g.Members {
		names = append(names, s.Name)
	}
	return names
}

// mostNames is the maximum number of names in a line.
const mostNames = 8

func shorten(names []string) string {
	line := strings.Join(names[:min(mostNames, len(names))], ", ")
	if more := len(names) - mostNames; more > 0 {
		line += fmt.Sprintf(", and %d more", more)
	}
	return line
}
