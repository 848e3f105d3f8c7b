package main

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/kube-network-policies/pkg/reachability"
)

// listing returns an overview as a list: for each side what it reaches. Sides of a namespace that
// reach the same are one entry.
func listing(o *reachability.Overview, t *table, s style) string {
	var out strings.Builder
	what := "Ports that each reaches"
	if o.Port != (reachability.Port{}) {
		what = trafficName(o.Port) + ": what each reaches"
	}
	fmt.Fprintf(&out, "%s\n", what)
	l := newLister(o, t)
	group := ""
	for _, e := range l.entries() {
		if e.group != group {
			group = e.group
			fmt.Fprintf(&out, "\n%s\n", s.paint(bold, group))
		}
		writeWrapped(&out, "  ", strings.Split(strings.Join(e.names, ", "), " "), "", s)
		for i, line := range e.lines {
			writeWrapped(&out, "    ", line, e.colors[i], s)
		}
	}
	return out.String()
}

// lister makes the entries of a list.
type lister struct {
	o     *reachability.Overview
	t     *table
	own   map[heading]bool // the columns
	sizes map[string]int   // how many columns a namespace has
}

// entry is sides that reach the same.
type entry struct {
	group  string
	names  []string
	lines  [][]string // words
	colors []string
}

func newLister(o *reachability.Overview, t *table) *lister {
	l := &lister{o: o, t: t, own: map[heading]bool{}, sizes: map[string]int{}}
	for _, h := range t.columns {
		l.own[h] = true
		l.sizes[h.group]++
	}
	return l
}

func (l *lister) entries() []*entry {
	var entries []*entry
	at := map[string]*entry{}
	for row := range l.o.From {
		h := l.t.rows[row]
		lines, colors := l.lines(row)
		key := h.group + "\x00" + fmt.Sprint(lines)
		if e, seen := at[key]; seen {
			e.names = append(e.names, h.label)
			continue
		}
		e := &entry{group: h.group, names: []string{h.label}, lines: lines, colors: colors}
		at[key] = e
		entries = append(entries, e)
	}
	return entries
}

// lines returns what a side reaches: for each set of ports those that it reaches there.
func (l *lister) lines(row int) (lines [][]string, colors []string) {
	self := l.t.rows[row]
	reached := map[string][]int{} // the columns of a cell's text
	var order, colorOf []string
	for column := range l.o.To {
		text, color := l.t.cells[row][column], l.t.marks[row][column]
		alone := l.t.columns[column] == self && !l.o.From[row].Replicated && len(l.o.From[row].Members) == 1
		if text == blocked || alone {
			continue
		}
		if _, seen := reached[text]; !seen {
			order, colorOf = append(order, text), append(colorOf, color)
		}
		reached[text] = append(reached[text], column)
	}
	if len(order) == 0 {
		return [][]string{{"nothing"}}, []string{dim}
	}
	for i, text := range order {
		switch text {
		case reaches:
			text = "reaches"
		case partly:
			text = "partly"
		}
		words := strings.Split(text, " ")
		words[len(words)-1] += ":"
		lines = append(lines, append(words, strings.Split(strings.Join(l.names(self, reached[order[i]]), ", "), " ")...))
		colors = append(colors, colorOf[i])
	}
	return lines, colors
}

// names returns the names of columns, as a side of a row calls them: short in its own
// namespace, and one name for all of a namespace.
func (l *lister) names(self heading, columns []int) []string {
	others := func(group string) int { // the columns of a namespace, without the side
		if group == self.group && l.own[self] {
			return l.sizes[group] - 1
		}
		return l.sizes[group]
	}
	var names []string
	in := map[string]int{}
	for _, c := range columns {
		if l.t.columns[c] != self {
			in[l.t.columns[c].group]++
		}
	}
	everything := true
	for group := range l.sizes {
		everything = everything && in[group] == others(group)
	}
	itself, done := false, map[string]bool{}
	for _, c := range columns {
		h := l.t.columns[c]
		switch {
		case h == self:
			itself = true
		case everything || done[h.group]:
		case in[h.group] == others(h.group) && in[h.group] > 1:
			done[h.group] = true
			names = append(names, h.group+"/*")
		case h.group == self.group || h.group == outside:
			names = append(names, h.label)
		default:
			names = append(names, h.group+"/"+h.label)
		}
	}
	if everything && len(columns) > 1 {
		names = []string{"everything else"}
	}
	if itself {
		names = append(names, "itself")
	}
	return names
}

// writeWrapped writes words on lines of the style's width. Lines after the first one are
// indented more.
func writeWrapped(out *strings.Builder, indent string, words []string, color string, s style) {
	line, empty := indent, true
	for _, word := range words {
		if !empty && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > s.width {
			fmt.Fprintln(out, s.paint(color, line))
			line, empty = indent+"  ", true
		}
		if !empty {
			line += " "
		}
		line += word
		empty = false
	}
	fmt.Fprintln(out, s.paint(color, line))
}
