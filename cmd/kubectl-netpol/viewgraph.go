package main

import (
	"html/template"
	"slices"
	"strings"

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
	g := pageGraph{Cell: cell, Labels: []graphLabel{}, Edges: [][3]int{}}
	at := g.addNodes(c)
	labels := map[graphLabel]int{}
	for row := range c.From {
		for column := range c.To {
			from, isFrom := at[c.From[row].String()]
			to, isTo := at[c.To[column].String()]
			if !isFrom || !isTo || from == to {
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

// addNodes adds a node for each side of the cluster or outside of it, ordered by name, and returns their
// indexes by name.
func (g *pageGraph) addNodes(c comparison) map[string]int {
	rows, columns := placesOf(c.From), placesOf(c.To)
	place := func(places map[string]int, name string) int {
		if i, ok := places[name]; ok {
			return i
		}
		return -1
	}
	at := map[string]int{}
	all := slices.Concat(c.From, c.To)
	slices.SortStableFunc(all, func(a, b reachability.Side) int { return strings.Compare(a.String(), b.String()) })
	for i := range all {
		h := newPageHeading(&all[i])
		if _, known := at[h.Name]; known || isNewOrOutside(all[i]) && !all[i].Outside {
			continue
		}
		at[h.Name] = len(g.Nodes)
		g.Nodes = append(g.Nodes, graphNode{Name: h.Name, Group: h.Group, Label: h.Label, Row: place(rows, h.Name), Column: place(columns, h.Name)})
	}
	return at
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
	if reaches && c.Port == (reachability.Port{}) {
		l.Text, _ = cellOf(c.Overview, row, column)
	}
	return l, reaches || l.Lost != ""
}
