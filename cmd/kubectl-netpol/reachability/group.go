package reachability

import (
	"crypto/sha256"
	"slices"
)

// Group is a set of endpoints with the same connections: each other endpoint reaches all of
// them or none, and all of them or none reach it; and either all of them reach each other
// or none does. So the cells of two groups have one value, apart from the connection of
// each endpoint to itself.
type Group struct {
	Members []Endpoint
	// Row and Column are the indexes of one member in From and To of the matrix, or -1 if the
	// members are not there.
	Row, Column int
}

// Groups returns the groups of the matrix, those of From before those of To only, each in
// the order of their first members.
func (m *Matrix) Groups() []Group {
	members := m.members()
	// Endpoints that reach each other have equal lines when every endpoint is assumed to reach
	// itself; endpoints that do not, when none is. No endpoint is in both kinds of group.
	for _, self := range []bool{true, false} {
		members = m.merge(members, self)
	}
	return members
}

// members returns a group for each endpoint.
func (m *Matrix) members() []Group {
	var groups []Group
	index := map[string]int{}
	for row, s := range m.From {
		index[s.Label()] = len(groups)
		groups = append(groups, Group{Members: []Endpoint{s}, Row: row, Column: -1})
	}
	for column, s := range m.To {
		if i, known := index[s.Label()]; known {
			groups[i].Column = column
			continue
		}
		groups = append(groups, Group{Members: []Endpoint{s}, Row: -1, Column: column})
	}
	return groups
}

// merge joins single-member groups with equal lines. The cell of each endpoint with itself
// is replaced by self.
func (m *Matrix) merge(groups []Group, self bool) []Group {
	var merged []Group
	index := map[[sha256.Size]byte]int{}
	for _, g := range groups {
		if len(g.Members) > 1 {
			merged = append(merged, g)
			continue
		}
		lines := m.lines(g, self)
		if i, seen := index[lines]; seen {
			merged[i].Members = append(merged[i].Members, g.Members...)
			continue
		}
		index[lines] = len(merged)
		merged = append(merged, g)
	}
	return merged
}

// lines hashes the row and the column of an endpoint.
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

// AllowedBetween reports whether the members of from reach those of to. For a group with
// itself it is about two different members if there are two.
func (m *Matrix) AllowedBetween(from, to Group) bool {
	if from.Row == to.Row && len(from.Members) > 1 && to.Column >= 0 {
		other := slices.IndexFunc(m.To, func(s Endpoint) bool { return s.Label() == from.Members[1].Label() })
		return m.Allowed(from.Row, other)
	}
	return m.Allowed(from.Row, to.Column)
}
