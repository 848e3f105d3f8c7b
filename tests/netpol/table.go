package netpol

import (
	"fmt"
	"slices"
)

// TruthTable has an outcome for every ordered pair of pods, a client and a server. Pods are
// named "namespace/pod". Hosts can have rows and columns too. It is not safe for concurrent
// writes.
type TruthTable struct {
	pods  []string
	index map[string]int
	cells []Outcome // row by row: from × to
}

// NewTruthTable returns a table over pods in this order, with every pair set to reaches. A
// duplicate name panics.
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

// outcomeOf returns the expected outcome. Policies drop silently.
func outcomeOf(reaches bool) Outcome {
	if reaches {
		return Connected
	}
	return TimedOut
}

// Get reports whether from reaches to.
func (t *TruthTable) Get(from, to string) bool { return t.Outcome(from, to) == Connected }

// Set sets whether from reaches to. If not, the outcome is TimedOut.
func (t *TruthTable) Set(from, to string, reaches bool) { t.SetOutcome(from, to, outcomeOf(reaches)) }

// Outcome returns the outcome of a connection.
func (t *TruthTable) Outcome(from, to string) Outcome { return t.cells[t.cell(from, to)] }

// SetOutcome sets the outcome of a connection.
func (t *TruthTable) SetOutcome(from, to string, outcome Outcome) {
	t.cells[t.cell(from, to)] = outcome
}

// Fill sets every pair to what reaches returns, and returns the table.
func (t *TruthTable) Fill(reaches func(from, to string) bool) *TruthTable {
	for _, from := range t.pods {
		for _, to := range t.pods {
			t.Set(from, to, reaches(from, to))
		}
	}
	return t
}

// cell panics for a pod that the table does not have, because a test with such an error
// must not pass.
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

// Compare returns the pairs in which observed differs from t, row by row. Where t has
// TimedOut, Refused and Unobservable also count as differences. Both tables must have the
// same pods.
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
