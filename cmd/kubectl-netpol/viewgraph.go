package main

import (
	"fmt"
	"html/template"
	"math"

	"sigs.k8s.io/kube-network-policies/pkg/reachability"
)

// pageGraph is a drawing of who connects to whom: nodes on a circle, and an arrow for each
// cell in which something is reached.
type pageGraph struct {
	Height int
	Nodes  []graphNode
	Edges  []graphEdge
}

type graphNode struct {
	Name, Meaning string
	X, Y, R       int
	TextX, TextY  int
	Anchor        string // of the text
}

type graphEdge struct {
	From, To, Meaning, Path string
	Link                    template.URL
}

const (
	graphWidth = 1000
	// labelWidth is left for names on both sides of the circle.
	labelWidth = 230
	nodeRadius = 6
	// bend is how far arrows are drawn to the centre, and apart how far those in opposite
	// directions are from each other, as parts of the way to it and of their lengths.
	bend, apart = 0.5, 0.06
)

// newPageGraph returns no nodes where there would be too many.
func newPageGraph(o *reachability.Overview, link func(row, column int) template.URL) pageGraph {
	sides, at := nodes(o)
	if len(sides) > maxNodes {
		return pageGraph{}
	}
	radius := float64(graphWidth)/2 - labelWidth
	height := int(2*radius) + 60
	g := pageGraph{Height: height}
	place := func(i int) (x, y, cos float64) {
		sin, cos := math.Sincos(2 * math.Pi * (float64(i) + 0.5) / float64(len(sides)))
		return graphWidth/2 + radius*cos, float64(height)/2 + radius*sin, cos
	}
	out, in := make([]int, len(sides)), make([]int, len(sides))
	for e := range edges(o) {
		from, to := at[e.from.String()], at[e.to.String()]
		out[from]++
		in[to]++
		if from == to {
			continue // an arrow to itself says little
		}
		x1, y1, _ := place(from)
		x2, y2, _ := place(to)
		cx, cy := (x1+x2)/2, (y1+y2)/2
		cx, cy = cx+(graphWidth/2-cx)*bend+(y2-y1)*apart, cy+(float64(height)/2-cy)*bend-(x2-x1)*apart
		ahead := math.Hypot(x2-cx, y2-cy)
		x2, y2 = x2-(x2-cx)/ahead*(nodeRadius+2), y2-(y2-cy)/ahead*(nodeRadius+2)
		g.Edges = append(g.Edges, graphEdge{
			From: e.from.String(), To: e.to.String(), Meaning: newPageCell(o, e.row, e.column, "", "").Meaning,
			Path: fmt.Sprintf("M%.0f %.0fQ%.0f %.0f %.0f %.0f", x1, y1, cx, cy, x2, y2),
			Link: link(e.row, e.column),
		})
	}
	for i, s := range sides {
		x, y, cos := place(i)
		n := graphNode{
			Name: s.String(), Meaning: fmt.Sprintf("%s connects to %d and is reached by %d", s, out[i], in[i]),
			X: int(x), Y: int(y), R: nodeRadius, TextX: int(x) + 12, TextY: int(y), Anchor: "start",
		}
		if cos < 0 {
			n.TextX, n.Anchor = int(x)-12, "end"
		}
		g.Nodes = append(g.Nodes, n)
	}
	return g
}
