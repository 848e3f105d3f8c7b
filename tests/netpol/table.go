// Package netpol says which pods should reach which and shows where what was
// observed differs. It knows nothing of what enforces the policies, nor of how
// a connection is tried.
package netpol

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// TruthTable tells for every ordered pair of pods whether the first one reaches
// the second. Pods are named "namespace/pod". It is not safe for concurrent
// writes.
type TruthTable struct {
	pods    []string
	index   map[string]int
	reaches []bool // row by row: from × to
}

// NewTruthTable returns a table over pods, in this order, with every pair set to
// reaches. Two pods of one name are a programmer's error and panic.
func NewTruthTable(pods []string, reaches bool) *TruthTable {
	t := &TruthTable{
		pods:    slices.Clone(pods),
		index:   make(map[string]int, len(pods)),
		reaches: slices.Repeat([]bool{reaches}, len(pods)*len(pods)),
	}
	for i, pod := range pods {
		if _, twice := t.index[pod]; twice {
			panic("netpol: pod " + pod + " twice in a table")
		}
		t.index[pod] = i
	}
	return t
}

// Pods returns the names in the order of rows and columns.
func (t *TruthTable) Pods() []string { return slices.Clone(t.pods) }

// Get tells whether from reaches to.
func (t *TruthTable) Get(from, to string) bool { return t.reaches[t.cell(from, to)] }

// Set states whether from reaches to.
func (t *TruthTable) Set(from, to string, reaches bool) { t.reaches[t.cell(from, to)] = reaches }

// Fill sets every pair to what reaches says of it and returns the table.
func (t *TruthTable) Fill(reaches func(from, to string) bool) *TruthTable {
	for _, from := range t.pods {
		for _, to := range t.pods {
			t.Set(from, to, reaches(from, to))
		}
	}
	return t
}

// cell panics for a pod the table does not have: a test that asks for one is
// wrong and must not pass.
func (t *TruthTable) cell(from, to string) int {
	row, knownRow := t.index[from]
	column, knownColumn := t.index[to]
	if !knownRow || !knownColumn {
		panic(fmt.Sprintf("netpol: no cell %s -> %s in a table of %v", from, to, t.pods))
	}
	return row*len(t.pods) + column
}

// Pair is one cell: a client and a server.
type Pair struct{ From, To string }

// Compare returns the pairs in which observed differs from t, row by row. Both
// tables must be over the same pods.
func (t *TruthTable) Compare(observed *TruthTable) []Pair {
	var differ []Pair
	for _, from := range t.pods {
		for _, to := range t.pods {
			if t.Get(from, to) != observed.Get(from, to) {
				differ = append(differ, Pair{from, to})
			}
		}
	}
	return differ
}

// Diff shows t and observed side by side with the differences marked. It is
// empty when there are none.
func (t *TruthTable) Diff(observed *TruthTable) string {
	if len(t.Compare(observed)) == 0 {
		return ""
	}
	return Show(Unicode, Grid{Title: "expected", Want: t}, Grid{Title: "observed", Want: t, Got: observed})
}

// Symbols are the marks of a printed table, one column wide each.
type Symbols struct{ Reaches, Blocked, Differs string }

// The two sets of symbols: for terminals that show UTF-8, and for the others.
var (
	Unicode = Symbols{Reaches: "✓", Blocked: "·", Differs: "✗"}
	ASCII   = Symbols{Reaches: "+", Blocked: ".", Differs: "X"}
)

// Grid is one table to print. Without Got it shows Want; with it, it shows Got
// and marks the cells that Want has otherwise.
type Grid struct {
	Title     string
	Want, Got *TruthTable
}

// Show prints grids over the same pods side by side: clients down, servers
// across, grouped by namespace.
func Show(symbols Symbols, grids ...Grid) string {
	pods := grids[0].Want.pods
	blocks := [][]string{labels(pods)}
	for _, g := range grids {
		blocks = append(blocks, g.lines(symbols))
	}
	var out strings.Builder
	for i := range blocks[0] {
		line := blocks[0][i]
		for _, block := range blocks[1:] {
			line += "    " + block[i]
		}
		out.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return out.String()
}

// headings is how many lines stand above the first row: title, namespaces, pods.
const headings = 3

// labels returns the left edge of a printed table.
func labels(pods []string) []string {
	return pad(append(make([]string, headings), pods...))
}

// lines returns the grid as lines of one width: the title, the namespaces, the
// pods, and a row for each client. A namespace is cut to the width of its pods;
// the left edge has all names whole.
func (g Grid) lines(symbols Symbols) []string {
	pods := g.Want.pods
	width := 1
	for _, pod := range pods {
		_, name := split(pod)
		width = max(width, utf8.RuneCountInString(name))
	}
	var namespaces, names, last string
	rows := make([]string, len(pods))
	for i, to := range pods {
		namespace, name := split(to)
		gap := " "
		switch {
		case i == 0:
			gap, namespaces = "", namespace
		case namespace != last:
			gap = "  "
			namespaces = fit(namespaces, utf8.RuneCountInString(names)) + gap + namespace
		}
		last = namespace
		names += gap + fit(name, width)
		for row, from := range pods {
			rows[row] += gap + fit(g.symbol(symbols, from, to), width)
		}
	}
	namespaces = fit(namespaces, utf8.RuneCountInString(names))
	return pad(append([]string{g.Title, namespaces, names}, rows...))
}

// symbol returns the mark of one cell.
func (g Grid) symbol(symbols Symbols, from, to string) string {
	reaches := g.Want.Get(from, to)
	switch {
	case g.Got != nil && g.Got.Get(from, to) != reaches:
		return symbols.Differs
	case reaches:
		return symbols.Reaches
	default:
		return symbols.Blocked
	}
}

func split(pod string) (namespace, name string) {
	namespace, name, _ = strings.Cut(pod, "/")
	return namespace, name
}

// pad fills every line up to the longest one.
func pad(lines []string) []string {
	width := 0
	for _, line := range lines {
		width = max(width, utf8.RuneCountInString(line))
	}
	for i, line := range lines {
		lines[i] = fit(line, width)
	}
	return lines
}

// fit cuts s to width columns, or fills it up with blanks.
func fit(s string, width int) string {
	runes := []rune(s)
	if len(runes) >= width {
		return string(runes[:width])
	}
	return s + strings.Repeat(" ", width-len(runes))
}
