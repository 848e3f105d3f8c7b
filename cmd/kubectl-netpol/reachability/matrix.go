package reachability

import "slices"

// Matrix reports for each pair of From and To whether connections are allowed.
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
		number, ok := port.numberOn(&to[column])
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
