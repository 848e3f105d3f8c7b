package netpol

import (
	"fmt"
	"slices"
)

// TruthTable tells for every ordered pair of pods whether the first one reaches
// the second, and if not, how that showed. Pods are named "namespace/pod"; what
// is no pod may have a row, too. It is not safe for concurrent writes.
type TruthTable struct {
	pods  []string
	index map[string]int
	cells []Outcome // row by row: from × to
}

// NewTruthTable returns a table over pods, in this order, with every pair set to
// reaches. Two pods of one name are a programmer's error and panic.
func NewTruthTable(pods []string, reaches bool) *TruthTable {
	t := &TruthTable{
		pods:  slices.Clone(pods),
		index: make(map[string]int, len(pods)),
		cells: slices.Repeat([]Outcome{outcomeOf(reaches)}, len(pods)*len(pods)),
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

// outcomeOf is what an expectation says: policy drops silently.
func outcomeOf(reaches bool) Outcome {
	if reaches {
		return Connected
	}
	return TimedOut
}

// Get tells whether from reaches to.
func (t *TruthTable) Get(from, to string) bool { return t.Outcome(from, to) == Connected }

// Set states whether from reaches to. One that does not is met with silence.
func (t *TruthTable) Set(from, to string, reaches bool) { t.SetOutcome(from, to, outcomeOf(reaches)) }

// Outcome tells how an attempt of from to reach to ends.
func (t *TruthTable) Outcome(from, to string) Outcome { return t.cells[t.cell(from, to)] }

// SetOutcome states how an attempt of from to reach to ends.
func (t *TruthTable) SetOutcome(from, to string, outcome Outcome) {
	t.cells[t.cell(from, to)] = outcome
}

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

// Compare returns the pairs in which observed differs from t, row by row: an
// expected silence is neither a refusal nor an attempt that was not made. Both
// tables must be over the same pods.
func (t *TruthTable) Compare(observed *TruthTable) []Pair {
	var differ []Pair
	for _, from := range t.pods {
		for _, to := range t.pods {
			if t.Outcome(from, to) != observed.Outcome(from, to) {
				differ = append(differ, Pair{from, to})
			}
		}
	}
	return differ
}
