package main

import (
	"fmt"
	"html/template"
	"slices"
	"strings"

	"sigs.k8s.io/kube-network-policies/pkg/reachability"
)

// matrixPage is the data of the template of that name.
type matrixPage struct {
	Title, Source string
	Notes         []string
	Static        bool // one file without a server
	Form          pageForm
	Problem       string // why there is no matrix

	Compared     string // with what, empty for nothing
	Flows        *pageFlows
	ColumnGroups []columnGroup
	Columns      []pageHeading
	Rows         []pageRow
	Graph        pageGraph
	Explanations []pageExplanation
}

// pageForm is what a page shows, and what there is to choose from.
type pageForm struct {
	pageQuery
	Groupings, Namespaces, Protocols, States []string
	// Audits and Records say that there are audited policies, and flows, to choose.
	Audits, Records bool
}

type columnGroup struct {
	Name string
	Span int
}

type pageHeading struct {
	Name         string // whole
	Group, Label string // its parts
}

type pageRow struct {
	pageHeading
	Span  int // rows of the group, in its first one
	Cells []pageCell
}

type pageCell struct {
	Class, Text, Meaning, Change string
	Link                         template.URL
	Flows                        cellFlows
}

type pageExplanation struct {
	ID, Title string
	Texts     []string
}

func (p *pages) matrixPage(q pageQuery, static bool) *matrixPage {
	page := &matrixPage{
		Title: "Network policies: who reaches whom", Source: p.source(), Notes: p.notes(), Static: static,
		Form: pageForm{q, []string{"workload", "pod", "namespace"}, p.namespaces(), protocols, nil, p.audits(), p.flows != nil},
	}
	if len(p.states) > 1 {
		page.Form.States = p.stateNames()
	}
	if err := p.fill(page, q); err != nil {
		page.Problem = err.Error()
	}
	return page
}

// namespaces are those that have pods.
func (p *pages) namespaces() []string {
	var names []string
	for _, pod := range p.states[0].in.Pods {
		names = append(names, pod.Namespace)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// fill evaluates what the page shows.
func (p *pages) fill(page *matrixPage, q pageQuery) error {
	shown, before, err := p.stateOf(q)
	if err != nil {
		return err
	}
	most := maxShown
	if page.Static {
		most = maxExplained
	}
	o, err := p.overview(q, shown, most)
	if err != nil {
		return err
	}
	compared := func(int, int) string { return "" }
	if before != nil {
		page.Compared = "before"
		if q.State != stateChanges {
			page.Compared = "as they are"
		}
		was, err := p.overview(q, before, most)
		if err != nil {
			return err
		}
		compared = changesOf(was, o)
	}
	for i := range o.To {
		page.addColumn(newPageHeading(&o.To[i]))
	}
	var seen map[[2]int]cellFlows
	if q.Flows == flowsShown && p.flows != nil {
		page.Flows, seen = p.flowsOf(q, o)
		page.Flows.Live = !page.Static
	}
	for row := range o.From {
		r := pageRow{pageHeading: newPageHeading(&o.From[row])}
		for column := range o.To {
			cell := newPageCell(o, row, column, compared(row, column), page.Compared)
			cell.addFlows(seen[[2]int{row, column}])
			cell.Link = p.link(page.Static, q, o, row, column)
			r.Cells = append(r.Cells, cell)
		}
		page.addRow(r)
	}
	page.Graph = newPageGraph(o, func(row, column int) template.URL { return p.link(page.Static, q, o, row, column) })
	if page.Static {
		for row := range o.From {
			for column := range o.To {
				page.Explanations = append(page.Explanations, pageExplanation{
					ID:    cellID(row, column),
					Title: cellTitle(&o.From[row], &o.To[column]),
					Texts: p.explainCell(shown, o, row, column),
				})
			}
		}
	}
	return nil
}

func cellID(row, column int) string { return fmt.Sprintf("cell-%d-%d", row, column) }

func cellTitle(from, to *reachability.Side) string { return from.String() + " → " + to.String() }

// link leads to the reasons of a cell.
func (p *pages) link(static bool, q pageQuery, o *reachability.Overview, row, column int) template.URL {
	if static {
		return template.URL("#" + cellID(row, column))
	}
	return template.URL("cell?" + q.encode("from", o.From[row].String(), "to", o.To[column].String()))
}

func newPageHeading(s *reachability.Side) pageHeading {
	h := newHeading(s)
	return pageHeading{Name: s.String(), Group: h.group, Label: h.label}
}

func (page *matrixPage) addColumn(h pageHeading) {
	page.Columns = append(page.Columns, h)
	if last := len(page.ColumnGroups) - 1; last >= 0 && page.ColumnGroups[last].Name == h.Group {
		page.ColumnGroups[last].Span++
		return
	}
	page.ColumnGroups = append(page.ColumnGroups, columnGroup{h.Group, 1})
}

func (page *matrixPage) addRow(r pageRow) {
	first := slices.IndexFunc(page.Rows, func(other pageRow) bool { return other.Group == r.Group })
	if first < 0 {
		r.Span = 1
	} else {
		page.Rows[first].Span++
	}
	page.Rows = append(page.Rows, r)
}

// newPageCell returns the cell without its link. change is "gained", "lost" or empty, and
// than is what it is compared with.
func newPageCell(o *reachability.Overview, row, column int, change, than string) pageCell {
	text, _ := cellOf(o, row, column)
	every, some := o.Every(row, column), o.Some(row, column)
	c := pageCell{Class: "ports", Text: text}
	meaning := every.String()
	if o.Port != (reachability.Port{}) {
		meaning = trafficName(o.Port)
	}
	switch {
	case every.Empty() && some.Empty():
		c.Class, meaning = "none", "nothing"
	case !some.Empty():
		c.Class, meaning = "some", text+", ~ between some of the pods only"
	case every.All() || o.Port != (reachability.Port{}):
		c.Class = "all"
	}
	c.Meaning = cellTitle(&o.From[row], &o.To[column]) + ": " + meaning
	switch change {
	case "gained":
		c.Change, c.Meaning = "+", c.Meaning+"; more than "+than
	case "lost":
		c.Change, c.Meaning = "−", c.Meaning+"; less than "+than
	}
	if change != "" {
		c.Class += " " + change
	}
	return c
}

// changesOf returns a function that names what a cell of after has gained or lost. A cell
// that has lost some ports and gained others counts as lost.
func changesOf(before, after *reachability.Overview) func(row, column int) string {
	rows, columns := placesOf(before.From), placesOf(before.To)
	return func(row, column int) string {
		r, ok := rows[after.From[row].String()]
		c, also := columns[after.To[column].String()]
		if !ok || !also {
			return "" // there is nothing to compare it with
		}
		was, is := before.Every(r, c), after.Every(row, column)
		wasAny, isAny := was.Union(before.Some(r, c)), is.Union(after.Some(row, column))
		switch {
		case !was.Without(is).Empty() || !wasAny.Without(isAny).Empty():
			return "lost"
		case !is.Without(was).Empty() || !isAny.Without(wasAny).Empty():
			return "gained"
		}
		return ""
	}
}

func placesOf(sides []reachability.Side) map[string]int {
	places := map[string]int{}
	for i := range sides {
		places[sides[i].String()] = i
	}
	return places
}

// explainCell explains a connection of a cell that is allowed, one that is allowed between
// some of the pods, and one that is not, as far as there are such.
func (p *pages) explainCell(s *state, o *reachability.Overview, row, column int) []string {
	ports := []reachability.Port{o.Port}
	if o.Port == (reachability.Port{}) {
		ports = nil
		every, some := o.Every(row, column), o.Some(row, column)
		for _, set := range []reachability.PortSet{every, some, reachability.AllPorts().Without(every).Without(some)} {
			if !set.Empty() {
				ports = append(ports, s.typical(set, &o.To[column]))
			}
		}
	}
	var texts []string
	for _, port := range ports {
		e := explainSides(s.cluster, o.From[row], o.To[column], port, p.family)
		var text strings.Builder
		_ = printExplanation(&text, &e) // a Builder has no errors
		texts = append(texts, text.String())
	}
	return texts
}

// typical returns a port of set that a reader knows: one that a pod of to declares or, if
// there is none, that policies name. The set is not empty.
func (s *state) typical(set reachability.PortSet, to *reachability.Side) reachability.Port {
	for _, member := range to.Members {
		for _, p := range s.declared[member.Name] {
			if set.Has(p.Proto, p.Number) {
				return p
			}
		}
	}
	for _, r := range s.named {
		if set.Has(r.Proto, r.First) {
			return r.Port()
		}
	}
	return set.Ranges()[0].Port()
}
