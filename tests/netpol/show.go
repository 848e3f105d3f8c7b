package netpol

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// Diff returns t and observed side by side with the differences marked, and lists the
// differences below. It is empty if there are none.
func (t *TruthTable) Diff(observed *TruthTable) string {
	differ := t.Compare(observed)
	if len(differ) == 0 {
		return ""
	}
	return Show(Unicode, Grid{Title: "expected", Want: t}, Grid{Title: "observed", Want: t, Got: observed}) +
		t.explain(observed, differ)
}

// explain describes the differences, one line for all clients with the same differences.
func (t *TruthTable) explain(observed *TruthTable, differ []Pair) string {
	var out strings.Builder
	for _, want := range []Outcome{Connected, TimedOut} {
		for _, got := range []Outcome{Connected, TimedOut, Refused, Unobservable} {
			clients := make(map[string][]string) // by their differing servers
			for from, servers := range t.rowsOf(differ, want, got, observed) {
				key := t.names(servers)
				clients[key] = append(clients[key], from)
			}
			for _, servers := range slices.Sorted(maps.Keys(clients)) {
				fmt.Fprintf(&out, "%s -> %s: %s, should be %s\n", t.names(clients[servers]), servers, got, wanted(want))
			}
		}
	}
	return out.String()
}

// wanted describes an expectation.
func wanted(o Outcome) string {
	if o == Connected {
		return "connected"
	}
	return "silently dropped"
}

// rowsOf returns, by client, the servers with differences of one kind.
func (t *TruthTable) rowsOf(differ []Pair, want, got Outcome, observed *TruthTable) map[string][]string {
	rows := make(map[string][]string)
	for _, pair := range differ {
		if t.Outcome(pair.From, pair.To) == want && observed.Outcome(pair.From, pair.To) == got {
			rows[pair.From] = append(rows[pair.From], pair.To)
		}
	}
	return rows
}

// names joins pods in the order of the table. All pods of a namespace are shortened to
// "namespace/*".
func (t *TruthTable) names(pods []string) string {
	total := make(map[string]int)
	for _, pod := range t.pods {
		namespace, _ := split(pod)
		total[namespace]++
	}
	var names []string
	for namespace, group := range byNamespace(t.pods, pods) {
		if len(group) == total[namespace] && len(group) > 1 {
			group = []string{namespace + "/*"}
		}
		names = append(names, group...)
	}
	return strings.Join(names, ", ")
}

// byNamespace yields, by namespace, the selected pods in the order of pods.
func byNamespace(pods, selected []string) iter.Seq2[string, []string] {
	groups := make(map[string][]string)
	var order []string
	for _, pod := range pods {
		if !slices.Contains(selected, pod) {
			continue
		}
		namespace, _ := split(pod)
		if groups[namespace] == nil {
			order = append(order, namespace)
		}
		groups[namespace] = append(groups[namespace], pod)
	}
	return func(yield func(string, []string) bool) {
		for _, namespace := range order {
			if !yield(namespace, groups[namespace]) {
				return
			}
		}
	}
}

// Symbols are the marks in a printed table, each one column wide. Differs marks a
// connection that should be denied, or a timeout that should be a connection.
type Symbols struct{ Reaches, Blocked, Differs, Refused, Unobservable string }

// The symbols for terminals with and without UTF-8.
var (
	Unicode = Symbols{Reaches: "✓", Blocked: "·", Differs: "✗", Refused: "r", Unobservable: "?"}
	ASCII   = Symbols{Reaches: "+", Blocked: ".", Differs: "X", Refused: "r", Unobservable: "?"}
)

// Grid is one table to print: Want or, if Got is not nil, Got with the cells marked that
// differ from Want.
type Grid struct {
	Title     string
	Want, Got *TruthTable
}

// Show prints grids over the same pods side by side. Rows are clients and columns are
// servers, grouped by namespace.
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

// headings is the number of lines above the first row: title, namespaces, pods.
const headings = 3

// labels returns the left edge of a printed table.
func labels(pods []string) []string {
	return pad(append(make([]string, headings), pods...))
}

// lines returns the grid as lines of equal width: the title, the namespaces, the pods, and
// a row for each client. In the heading a namespace's name is truncated to the width of its
// pods; the left edge has complete names.
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
	want := g.Want.Outcome(from, to)
	shown := want
	if g.Got != nil {
		shown = g.Got.Outcome(from, to)
	}
	switch {
	case shown == Unobservable:
		return symbols.Unobservable
	case shown == Refused:
		return symbols.Refused
	case shown != want:
		return symbols.Differs
	case shown == Connected:
		return symbols.Reaches
	default:
		return symbols.Blocked
	}
}

func split(pod string) (namespace, name string) {
	namespace, name, _ = strings.Cut(pod, "/")
	return namespace, name
}

// pad pads every line to the width of the longest one.
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

// fit truncates s to width columns, or pads it with blanks.
func fit(s string, width int) string {
	runes := []rune(s)
	if len(runes) >= width {
		return string(runes[:width])
	}
	return s + strings.Repeat(" ", width-len(runes))
}
