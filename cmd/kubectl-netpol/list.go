package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
)

// listing returns an overview as a list of what each side reaches. Sides of a namespace
// that reach the same share an entry.
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

// lister builds the entries of a list.
type lister struct {
	o     *reachability.Overview
	t     *table
	own   map[heading]int // index of each column
	sizes map[string]int  // number of columns by namespace
}

// entry is a set of sides that reach the same.
type entry struct {
	group  string
	names  []string
	row    int // of the first side
	sets   *sets
	keys   []string   // a side with one of these keys belongs to the entry
	lines  [][]string // words
	colors []string
}

func newLister(o *reachability.Overview, t *table) *lister {
	l := &lister{o: o, t: t, own: map[heading]int{}, sizes: map[string]int{}}
	for i, h := range t.columns {
		l.own[h] = i
		l.sizes[h.group]++
	}
	return l
}

// entries returns the entries in the order of their first sides. The connection of a single
// pod to itself is left out, so pods that all reach each other have different lists. They
// still belong to one entry: the list of one, with that pod added, equals the list of
// another, with the other pod added.
func (l *lister) entries() []*entry {
	var entries []*entry
	byKey := map[string]*entry{}
	for row := range l.o.From {
		sets := l.sets(row)
		keys := []string{sets.key(-1, row)}
		self := l.column(row)
		if l.isSingle(row) && self >= 0 {
			for i := range sets.columns {
				keys = append(keys, sets.key(i, self))
			}
		}
		for i := range keys {
			keys[i] = l.t.rows[row].group + "\x00" + keys[i]
		}
		known := slices.IndexFunc(keys, func(key string) bool { return byKey[key] != nil })
		if known < 0 {
			e := &entry{group: l.t.rows[row].group, names: []string{l.t.rows[row].label}, row: row, sets: sets, keys: keys}
			for _, key := range keys {
				byKey[key] = e
			}
			entries = append(entries, e)
			continue
		}
		e := byKey[keys[known]]
		e.names = append(e.names, l.t.rows[row].label)
		if len(e.keys) > 1 { // from now on only this key identifies the entry
			for _, key := range e.keys {
				delete(byKey, key)
			}
			if i := slices.Index(e.keys, keys[known]); i > 0 {
				e.sets.columns[i-1] = append(e.sets.columns[i-1], l.column(e.row))
				slices.Sort(e.sets.columns[i-1])
			}
			e.keys = keys[known : known+1]
			byKey[e.keys[0]] = e
		}
	}
	for _, e := range entries {
		e.lines, e.colors = l.lines(e)
	}
	return entries
}

// isSingle reports whether the side of a row is a single pod or address.
func (l *lister) isSingle(row int) bool {
	return !l.o.From[row].Replicated && len(l.o.From[row].Members) == 1
}

// column returns the column with the side of a row, or -1.
func (l *lister) column(row int) int {
	if i, ok := l.own[l.t.rows[row]]; ok {
		return i
	}
	return -1
}

// sets groups the columns that a side reaches by the text of their cells.
type sets struct {
	texts, colors []string
	columns       [][]int
}

// key encodes the sets with one more column in the set index.
func (s *sets) key(index, column int) string {
	var key strings.Builder
	for i, columns := range s.columns {
		if i == index {
			columns = slices.Sorted(slices.Values(append(columns[:len(columns):len(columns)], column)))
		}
		fmt.Fprintln(&key, s.texts[i], columns)
	}
	return key.String()
}

func (l *lister) sets(row int) *sets {
	s := &sets{}
	index := map[string]int{}
	for column := range l.o.To {
		text := l.t.cells[row][column]
		if text == blocked || l.isSingle(row) && column == l.column(row) {
			continue
		}
		i, seen := index[text]
		if !seen {
			i = len(s.texts)
			index[text] = i
			s.texts, s.colors, s.columns = append(s.texts, text), append(s.colors, l.t.marks[row][column]), append(s.columns, nil)
		}
		s.columns[i] = append(s.columns[i], column)
	}
	return s
}

// lines describes what the sides of an entry reach.
func (l *lister) lines(e *entry) (lines [][]string, colors []string) {
	if len(e.sets.texts) == 0 {
		return [][]string{{"nothing"}}, []string{dim}
	}
	for i, text := range e.sets.texts {
		switch text {
		case reaches:
			text = "reaches"
		case partly:
			text = "partly"
		}
		words := strings.Split(text+": "+strings.Join(l.names(e, e.sets.columns[i]), ", "), " ")
		lines = append(lines, words)
	}
	return lines, e.sets.colors
}

// names returns the names of columns from the point of view of an entry: short in its own
// namespace, and one name if all of a namespace is reached.
func (l *lister) names(e *entry, columns []int) []string {
	in := map[string]int{}
	for _, c := range columns {
		in[l.t.columns[c].group]++
	}
	self := l.column(e.row)
	except := l.isSingle(e.row) && self >= 0 && !slices.Contains(columns, self)
	if except {
		in[e.group]++
	}
	if len(columns) > 1 && maps.Equal(in, l.sizes) {
		if except {
			return []string{"everything else"}
		}
		return []string{"everything"}
	}
	var names []string
	done := map[string]bool{}
	for _, c := range columns {
		h := l.t.columns[c]
		switch {
		case done[h.group]:
		case in[h.group] == l.sizes[h.group] && in[h.group] > 1:
			done[h.group] = true
			names = append(names, h.group+"/*")
		case h.group == e.group || h.group == outside:
			names = append(names, h.label)
		default:
			names = append(names, h.group+"/"+h.label)
		}
	}
	return names
}

// writeWrapped writes words on lines of the style's width and indents continuation lines.
func writeWrapped(out io.Writer, indent string, words []string, color string, s style) {
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
