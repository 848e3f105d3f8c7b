package main

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/kube-network-policies/pkg/reachability"
)

// The marks of cells.
const (
	reaches = "✓"
	blocked = "·"
)

// maxWidth is how wide a table may get before its columns have numbers instead
// of names.
const maxWidth = 120

// table is a matrix as people read it.
type table struct {
	title  string
	self   bool                 // everyone reaches itself
	groups []reachability.Group // those with more than one member, which are listed
	rows   []string             // labels
	names  []string             // labels of columns
	cells  [][]string
}

func newTable(m *reachability.Matrix) *table {
	t := &table{title: title(m.Port), self: m.Port.Name == ""}
	groups := m.Groups()
	var columns []reachability.Group
	for _, g := range groups {
		if len(g.Members) > 1 {
			t.groups = append(t.groups, g)
		}
		if g.Column >= 0 {
			columns = append(columns, g)
			t.names = append(t.names, label(g))
		}
	}
	for _, from := range groups {
		if from.Row < 0 {
			continue
		}
		t.rows = append(t.rows, label(from))
		var cells []string
		for _, to := range columns {
			cells = append(cells, mark(m.AllowedBetween(from, to)))
		}
		t.cells = append(t.cells, cells)
	}
	return t
}

func title(p reachability.Port) string { return strings.TrimSpace(p.Proto.String() + " " + p.String()) }

func mark(allowed bool) string {
	if allowed {
		return reaches
	}
	return blocked
}

// label is the name of a group: its first member, and how many more.
func label(g reachability.Group) string {
	name := g.Members[0].Name
	if more := len(g.Members) - 1; more > 0 {
		return fmt.Sprintf("%s +%d", name, more)
	}
	return name
}

// print writes the table for a terminal: clients down, servers across.
func (t *table) print(w io.Writer) error {
	out := bufio.NewWriter(w)
	rows, names := t.rows, t.names
	numbered := wide(rows, names)
	if numbered {
		rows, names = t.numbered()
	}
	edge := longest(rows)
	fmt.Fprintf(out, "%s, from the row to the column: %s reaches, %s does not\n\n", t.title, reaches, blocked)
	line := pad("", edge)
	for _, name := range names {
		line += "  " + name
	}
	fmt.Fprintln(out, line)
	for i, row := range rows {
		line := pad(row, edge)
		for j, cell := range t.cells[i] {
			line += "  " + pad(cell, utf8.RuneCountInString(names[j]))
		}
		fmt.Fprintln(out, strings.TrimRight(line, " "))
	}
	if numbered {
		t.printColumns(out)
	}
	t.printGroups(out, "")
	return out.Flush()
}

// printColumns lists the names of numbered columns that have no row.
func (t *table) printColumns(out io.Writer) {
	begun := false
	for i, name := range t.names {
		if slices.Contains(t.rows, name) {
			continue
		}
		if !begun {
			fmt.Fprintln(out)
			begun = true
		}
		fmt.Fprintf(out, "Column %d: %s\n", i+1, name)
	}
}

// wide reports whether a table with names as headings is too wide.
func wide(rows, names []string) bool {
	width := longest(rows)
	for _, name := range names {
		width += 2 + utf8.RuneCountInString(name)
	}
	return width > maxWidth
}

// numbered returns the labels with numbers. Columns have only the number, which a row
// or a list of columns explains.
func (t *table) numbered() (rows, names []string) {
	digits := len(strconv.Itoa(len(t.names)))
	for i := range t.names {
		names = append(names, pad(strconv.Itoa(i+1), digits))
	}
	for _, row := range t.rows {
		number := ""
		if i := slices.Index(t.names, row); i >= 0 {
			number = strconv.Itoa(i + 1)
		}
		rows = append(rows, strings.Repeat(" ", digits-len(number))+number+" "+row)
	}
	return rows, names
}

func (t *table) printGroups(out io.Writer, bullet string) {
	if len(t.groups) == 0 {
		return
	}
	self := ""
	if t.self {
		self = "; each reaches itself"
	}
	fmt.Fprintf(out, "\nPods of one row or column have the same connections%s:\n", self)
	if bullet != "" {
		fmt.Fprintln(out)
	}
	for _, g := range t.groups {
		fmt.Fprintf(out, "%s%s: %s\n", bullet, label(g), shorten(members(g)))
	}
}

// printMarkdown writes the table for a page or a comment of a pull request.
func (t *table) printMarkdown(w io.Writer) error {
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "| %s | %s |\n", t.title, strings.Join(t.names, " | "))
	fmt.Fprintf(out, "| --- |%s\n", strings.Repeat(" --- |", len(t.names)))
	for i, row := range t.rows {
		fmt.Fprintf(out, "| %s | %s |\n", row, strings.Join(t.cells[i], " | "))
	}
	t.printGroups(out, "- ")
	return out.Flush()
}

func longest(labels []string) int {
	width := 0
	for _, l := range labels {
		width = max(width, utf8.RuneCountInString(l))
	}
	return width
}

func pad(s string, width int) string {
	return s + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(s)))
}
