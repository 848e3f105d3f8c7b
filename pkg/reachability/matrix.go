package reachability

import (
	"encoding/json"
	"slices"
)

// Matrix reports for every endpoint of From and every endpoint of To whether a connection
// from the one to the other is allowed.
type Matrix struct {
	Port    Port
	From    []Endpoint
	To      []Endpoint
	allowed []bool // row by row
}

// Matrix evaluates every pair.
func (c *Cluster) Matrix(from, to []Endpoint, port Port, family Family) *Matrix {
	m := &Matrix{Port: port, From: from, To: to, allowed: make([]bool, len(from)*len(to))}
	r := c.Reach(slices.Concat(from, to), family)
	for column := range to {
		number, ok := port.on(&to[column])
		if !ok {
			continue
		}
		for row := range from {
			m.allowed[row*len(to)+column] = r.Between(row, len(from)+column).Has(port.Proto, number)
		}
	}
	return m
}

// Allowed reports whether From[row] reaches To[column].
func (m *Matrix) Allowed(row, column int) bool { return m.allowed[row*len(m.To)+column] }

// Names returns the names of all sides, each once, in order.
func (m *Matrix) Names() []string {
	var names []string
	for _, s := range slices.Concat(m.From, m.To) {
		names = append(names, s.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// MarshalJSON renders the whole matrix, ungrouped:
//
//	{"port":"80","protocol":"TCP","pods":["x/a",…],"allowed":{"x/a":{"x/b":true,…},…}}
//
// Pods are the names of all sides, addresses included.
func (m *Matrix) MarshalJSON() ([]byte, error) {
	allowed := make(map[string]map[string]bool, len(m.From))
	for row, from := range m.From {
		cells := make(map[string]bool, len(m.To))
		for column, to := range m.To {
			cells[to.Name] = m.Allowed(row, column)
		}
		allowed[from.Name] = cells
	}
	return json.Marshal(struct {
		Port     string                     `json:"port"`
		Protocol string                     `json:"protocol"`
		Pods     []string                   `json:"pods"`
		Allowed  map[string]map[string]bool `json:"allowed"`
	}{m.Port.String(), m.Port.Proto.String(), m.Names(), allowed})
}
