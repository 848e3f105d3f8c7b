package main

import (
	"html/template"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
)

// pageGraph is what the page's script draws: workloads, and an arrow for each cell in which
// something is reached, or was before. A page without nodes has no graph.
type pageGraph struct {
	Unit   string       `json:"unit"` // what the nodes are: workloads, pods or namespaces
	Nodes  []graphNode  `json:"nodes"`
	Labels []graphLabel `json:"labels"`
	// Edges are indexes of nodes and of a label.
	Edges [][3]int `json:"edges"`
	// Cell is the begin of the links to cells: "#cell-", which ROW-COLUMN follows, or a query.
	// It is empty if there are no reasons.
	Cell template.URL `json:"cell"`
}

// graphNode is a row and column of the page, or -1.
type graphNode struct {
	Name   string `json:"name"`
	Group  string `json:"group"`
	Label  string `json:"label"`
	Row    int    `json:"row"`
	Column int    `json:"column"`
}

// graphLabel is what arrows say: ports, and those that they have gained and lost.
type graphLabel struct {
	Text   string `json:"text"`
	Some   bool   `json:"some,omitempty"` // between some of the pods only
	Gained string `json:"gained,omitempty"`
	Lost   string `json:"lost,omitempty"`
}

// comparison is what is reached, and how that changed.
type comparison struct {
	*reachability.Overview
	change func(row, column int) cellChange
}

// newPageGraph returns the graph of what is in the cluster or outside of it.
func newPageGraph(c comparison, cell template.URL) pageGraph {
	sides, index := nodes(c.Overview)
	rows, columns := placesOf(c.From), placesOf(c.To)
	g := pageGraph{Cell: cell, Labels: []graphLabel{}, Edges: [][3]int{}}
	at := make([]int, len(sides)) // index in Nodes, or -1
	for i, side := range sides {
		at[i] = -1
		if isNewOrOutside(*side) && !side.Outside {
			continue
		}
		at[i] = len(g.Nodes)
		h := newPageHeading(side)
		node := graphNode{Name: h.Name, Group: h.Group, Label: h.Label, Row: -1, Column: -1}
		if row, ok := rows[h.Name]; ok {
			node.Row = row
		}
		if column, ok := columns[h.Name]; ok {
			node.Column = column
		}
		g.Nodes = append(g.Nodes, node)
	}
	labels := map[graphLabel]int{}
	for row := range c.From {
		for column := range c.To {
			from, to := at[index[c.From[row].String()]], at[index[c.To[column].String()]]
			if from < 0 || to < 0 || from == to {
				continue
			}
			label, any := c.label(row, column)
			if !any {
				continue
			}
			if _, known := labels[label]; !known {
				labels[label] = len(g.Labels)
				g.Labels = append(g.Labels, label)
			}
			g.Edges = append(g.Edges, [3]int{from, to, labels[label]})
		}
	}
	return g
}

// label returns what an arrow says, and whether there is any.
func (c comparison) label(row, column int) (graphLabel, bool) {
	change := c.change(row, column)
	l := graphLabel{
		Some:   !c.Some(row, column).Empty(),
		Gained: change.gained.text(c.Port),
		Lost:   change.lost.text(c.Port),
	}
	reaches := reachesAny(c.Overview, row, column)
	if reaches {
		l.Text = edgeLabel(c.Overview, row, column)
	}
	return l, reaches || l.Lost != ""
}
