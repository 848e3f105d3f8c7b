package reachability

import (
	"crypto/sha256"
	"slices"
)

// Group is endpoints with the same connections: every other
// endpoint reaches all of them or none, they all reach it or none does, and they
// reach each other all or not at all. Everyone's way to itself aside, the cells
// of two groups are therefore one.
type Group struct {
	Members []Endpoint
	// Row and Column are places of one member in From and To of the matrix, -1
	// where the members are not there.
	Row, Column int
}

// Groups returns the groups of the matrix in the order of their first members,
// first those of From, then the others.
func (m *Matrix) Groups() []Group {
	members := m.members()
	// Those who reach each other have equal lines once everyone reaches itself,
	// the others once none does. No endpoint can be of both sorts.
	for _, self := range []bool{true, false} {
		members = m.merge(members, self)
	}
	return members
}

// members returns a group of each side.
func (m *Matrix) members() []Group {
	var groups []Group
	at := map[string]int{}
	for row, s := range m.From {
		at[s.Name] = len(groups)
		groups = append(groups, Group{Members: []Endpoint{s}, Row: row, Column: -1})
	}
	for column, s := range m.To {
		if i, both := at[s.Name]; both {
			groups[i].Column = column
			continue
		}
		groups = append(groups, Group{Members: []Endpoint{s}, Row: -1, Column: column})
	}
	return groups
}

// merge joins the groups of one member whose lines are equal, when what a side
// thinks of itself is replaced by self.
func (m *Matrix) merge(groups []Group, self bool) []Group {
	var merged []Group
	at := map[[sha256.Size]byte]int{}
	for _, g := range groups {
		if len(g.Members) > 1 {
			merged = append(merged, g)
			continue
		}
		lines := m.lines(g, self)
		if i, seen := at[lines]; seen {
			merged[i].Members = append(merged[i].Members, g.Members...)
			continue
		}
		at[lines] = len(merged)
		merged = append(merged, g)
	}
	return merged
}

// lines sums up the row and the column of a side.
func (m *Matrix) lines(g Group, self bool) [sha256.Size]byte {
	line := make([]byte, 0, 2+len(m.From)+len(m.To))
	add := func(v bool) {
		line = append(line, '0')
		if v {
			line[len(line)-1] = '1'
		}
	}
	add(g.Row >= 0)
	add(g.Column >= 0)
	if g.Row >= 0 {
		for column := range m.To {
			add(m.Allowed(g.Row, column) && column != g.Column || self && column == g.Column)
		}
	}
	if g.Column >= 0 {
		for row := range m.From {
			add(m.Allowed(row, g.Column) && row != g.Row || self && row == g.Row)
		}
	}
	return sha256.Sum256(line)
}

// AllowedBetween reports whether the members of from reach those of to. Of one
// group with itself it is about two different members, if there are two.
func (m *Matrix) AllowedBetween(from, to Group) bool {
	if from.Row == to.Row && len(from.Members) > 1 && to.Column >= 0 {
		other := slices.IndexFunc(m.To, func(s Endpoint) bool { return s.Name == from.Members[1].Name })
		return m.Allowed(from.Row, other)
	}
	return m.Allowed(from.Row, to.Column)
}
