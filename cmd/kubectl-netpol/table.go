package main

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/words"
)

// The marks of cells.
const (
	reaches = "✓"
	blocked = "·"
	partly  = "~" // before what only some of the pods reach
)

// printTable writes an overview for people: a table if it fits, else a list.
func printTable(w io.Writer, o *reachability.Overview, s style) error {
	out := bufio.NewWriter(w)
	t := newTable(o)
	if t.width() <= s.width {
		out.WriteString(t.render(s))
	} else {
		out.WriteString(listing(o, t, s))
	}
	printPartial(out, o, s)
	return out.Flush()
}

// table is an overview as rows and columns.
type table struct {
	title   string
	rows    []heading
	columns []heading
	cells   [][]string
	marks   [][]string // colours of cells
}

// heading is the label of a row or a column.
type heading struct {
	group string // the namespace
	label string
}

// outside is the group of sides without a namespace.
const outside = "addresses"

func newHeading(s *reachability.Side) heading {
	switch {
	case s.Namespace == "":
		return heading{outside, s.Name}
	case s.Name == "":
		return heading{"namespaces", s.Namespace}
	}
	return heading{s.Namespace, s.Name}
}

func headings(sides []reachability.Side) []heading {
	all := make([]heading, len(sides))
	for i := range sides {
		all[i] = newHeading(&sides[i])
	}
	return all
}

func newTable(o *reachability.Overview) *table {
	t := &table{title: title(o), rows: headings(o.From), columns: headings(o.To)}
	type cell struct{ text, color string }
	known := map[[2]int32]cell{}
	for row := range o.From {
		cells, marks := make([]string, len(o.To)), make([]string, len(o.To))
		for column := range o.To {
			c, ok := known[o.Cell(row, column)]
			if !ok {
				c.text, c.color = cellOf(o, row, column)
				known[o.Cell(row, column)] = c
			}
			cells[column], marks[column] = c.text, c.color
		}
		t.cells, t.marks = append(t.cells, cells), append(t.marks, marks)
	}
	return t
}

// title says what the cells show.
func title(o *reachability.Overview) string {
	if o.Port == (reachability.Port{}) {
		return "Ports that the row reaches of the column: " + blocked + " none"
	}
	return fmt.Sprintf("%s, from the row to the column: %s reaches, %s does not", trafficName(o.Port), reaches, blocked)
}

func trafficName(p reachability.Port) string {
	return strings.TrimSpace(p.Proto.String() + " " + p.String())
}

// reachesAny reports whether some of the pods reach anything.
func reachesAny(o *reachability.Overview, row, column int) bool {
	return o.Cell(row, column) != [2]int32{}
}

// cellOf returns the text and the colour of a cell.
func cellOf(o *reachability.Overview, row, column int) (text, color string) {
	every, some := o.Every(row, column), o.Some(row, column)
	one := o.Port != (reachability.Port{})
	switch {
	case every.Empty() && some.Empty():
		return blocked, dim
	case one && some.Empty():
		return reaches, green
	case one:
		return partly, yellow
	case some.Empty():
		return every.String(), green
	case every.Empty():
		return partly + some.String(), yellow
	}
	return every.String() + " " + partly + some.String(), yellow
}

// width returns the width of the widest line of the table itself.
func (t *table) width() int {
	width := t.edge()
	for _, w := range t.widths() {
		width += 2 + w
	}
	return width
}

// edge returns the width of the row labels.
func (t *table) edge() int {
	width := 0
	for _, h := range t.rows {
		width = max(width, 2+utf8.RuneCountInString(h.label))
	}
	return width
}

// widths returns the widths of the columns. A namespace's last column has room for the
// namespace's name.
func (t *table) widths() []int {
	widths := make([]int, len(t.columns))
	for j, h := range t.columns {
		widths[j] = utf8.RuneCountInString(h.label)
		for i := range t.cells {
			widths[j] = max(widths[j], utf8.RuneCountInString(t.cells[i][j]))
		}
	}
	for first, next := 0, 0; first < len(t.columns); first = next {
		have := -2
		for next = first; next < len(t.columns) && t.columns[next].group == t.columns[first].group; next++ {
			have += 2 + widths[next]
		}
		widths[next-1] += max(0, utf8.RuneCountInString(t.columns[first].group)-have)
	}
	return widths
}

func (t *table) render(s style) string {
	var out strings.Builder
	edge, widths := t.edge(), t.widths()
	fmt.Fprintf(&out, "%s\n\n", t.title)
	groups, names := pad("", edge), pad("", edge)
	for j, h := range t.columns {
		group := ""
		if h.group != "" && (j == 0 || t.columns[j-1].group != h.group) {
			group = h.group
		}
		// A namespace's name spans all its columns.
		groups = pad(groups, utf8.RuneCountInString(names)) + "  " + group
		names += "  " + pad(h.label, widths[j])
	}
	if groups = strings.TrimRight(groups, " "); groups != "" {
		fmt.Fprintln(&out, s.paint(bold, groups))
	}
	fmt.Fprintln(&out, strings.TrimRight(names, " "))
	for i, h := range t.rows {
		if i == 0 || t.rows[i-1].group != h.group {
			fmt.Fprintln(&out, s.paint(bold, h.group))
		}
		last := len(t.cells[i]) - 1
		line := pad("  "+h.label, edge)
		for j, cell := range t.cells[i] {
			if j < last {
				cell = pad(cell, widths[j])
			}
			line += "  " + s.paint(t.marks[i][j], cell)
		}
		fmt.Fprintln(&out, line)
	}
	return out.String()
}

// mostPartial is the maximum number of cells for which differing pods are named.
const mostPartial = 5

// printPartial names pods for cells that some of their pods reach and others do not.
func printPartial(out io.Writer, o *reachability.Overview, s style) {
	more, lines, what := 0, []string{}, "only some of the pods"
	for row := range o.From {
		for column := range o.To {
			if o.Some(row, column).Empty() {
				continue
			}
			more++
			if more > mostPartial {
				continue
			}
			ports := o.Some(row, column).String()
			if o.Port != (reachability.Port{}) {
				ports = trafficName(o.Port)
			}
			p := o.Partial(row, column)
			line := fmt.Sprintf("%s -> %s: %d of %d pairs reach %s; not %s -> %s", &o.From[row], &o.To[column], p.Reaching, p.Pairs, ports, withoutPlace(p.Without[0]), lacking(p))
			if p.Depends != "" {
				line = fmt.Sprintf("%s -> %s: %s %s", &o.From[row], &o.To[column], ports, p.Depends)
				what = "only some of the pods, or by addresses that are not known"
			}
			lines = append(lines, line)
		}
	}
	if more > 0 {
		fmt.Fprintf(out, "\n%s %s:\n", partly, what)
	}
	for _, line := range lines {
		writeWrapped(out, "", strings.Split(line, " "), "", s)
	}
	if more > mostPartial {
		fmt.Fprintf(out, "and %d more; --by pod shows all\n", more-mostPartial)
	}
}

// lacking lists the first few destinations that the source of an example does not reach.
func lacking(p reachability.Partial) string {
	var names []string
	for _, label := range p.Lacking {
		names = append(names, withoutPlace(label))
	}
	return words.Few(compacted(names), 4, ", ")
}

// withoutPlace returns the name in a label: the place makes no difference.
func withoutPlace(label string) string {
	name, _, _ := strings.Cut(label, " (if in ")
	return name
}

func pad(s string, width int) string {
	return s + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(s)))
}
