package main

import (
	"cmp"
	"fmt"
	"html/template"
	"slices"
	"strings"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
)

// matrixPage is the data of the template "matrix".
type matrixPage struct {
	Title, Source string
	Notes         []string
	Summary       *pageSummary
	Static        bool // one file without a server
	Form          pageForm
	Problem       string // why there is no matrix

	Compared     string // what it is compared with, or ""
	Flows        *pageFlows
	ColumnGroups []columnGroup
	Columns      []pageHeading
	Rows         []pageRow
	Graph        pageGraph
	Explanations []pageExplanation
	Packed       []string // the reasons of each row instead of Explanations
}

// pageForm is what a page shows, and the choices that it offers.
type pageForm struct {
	pageQuery
	Groupings, Namespaces, Protocols, States []string
	// Audits and Records offer audited policies and flows.
	Audits, Records bool
}

type columnGroup struct {
	Name string
	Span int
}

type pageHeading struct {
	Name         string // in full
	Group, Label string // parts of Name
}

type pageRow struct {
	pageHeading
	Span  int // number of the group's rows, set in its first one
	Cells []pageCell
}

type pageCell struct {
	Class, Text, Meaning string
	Gained, Lost         string // ports, with "~" those of some of the pods
	Link                 template.URL
	Flows                cellFlows
}

type pageExplanation struct {
	ID, Title string
	Texts     []string
}

func (p *pages) matrixPage(q pageQuery, static bool) *matrixPage {
	page := &matrixPage{Title: "Network policies: who reaches whom", Source: p.source(), Notes: p.notes(), Static: static}
	shown, before, err := p.stateOf(q)
	if err == nil {
		q = p.settle(shown, q)
		err = p.fill(page, q, shown, before)
	}
	if err != nil {
		page.Problem = err.Error()
	}
	page.Form = pageForm{q, []string{"workload", "pod", "namespace"}, p.namespacesOfPods(), protocols, nil, p.audits(), p.flows != nil}
	if len(p.states) > 1 {
		page.Form.States = p.stateNames()
	}
	return page
}

// namespacesOfPods are those that have pods.
func (p *pages) namespacesOfPods() []string {
	var names []string
	for _, pod := range p.states[0].in.Pods {
		names = append(names, pod.Namespace)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// fill evaluates what the page shows.
func (p *pages) fill(page *matrixPage, q pageQuery, shown, before *state) error {
	if before != nil {
		page.Compared = "before"
		if q.State != stateChanges {
			page.Compared = "as they are"
		}
	}
	o, err := p.compare(q, shown, before)
	if err != nil {
		return err
	}
	link := p.linker(page.Static, q, o.Overview)
	p.fillMatrix(page, q, o, link)
	if err := p.fillGraph(page, q, o, shown, before); err != nil {
		return err
	}
	if page.Summary, err = p.summary(q, shown, link); err != nil || !page.Static {
		return err
	}
	for row := range o.From {
		if len(o.From)*len(o.To) > maxPlain {
			packed, err := p.packReasons(shown, o.Overview, row)
			if err != nil {
				return err
			}
			page.Packed = append(page.Packed, packed)
			continue
		}
		for column := range o.To {
			page.Explanations = append(page.Explanations, pageExplanation{
				ID:    cellID(row, column),
				Title: page.Rows[row].Cells[column].Meaning,
				Texts: p.explainCell(shown, o.Overview, row, column),
			})
		}
	}
	return nil
}

// compare evaluates what a query asks for in a state and, if that is given, in the one before.
func (p *pages) compare(q pageQuery, shown, before *state) (comparison, error) {
	o, err := p.overview(q, shown)
	c := comparison{o, func(int, int) cellChange { return cellChange{} }}
	if err != nil || before == nil {
		return c, err
	}
	overviewBefore, err := p.overview(q, before)
	if err == nil {
		c.change = changesOf(overviewBefore, o)
	}
	return c, err
}

func (p *pages) fillMatrix(page *matrixPage, q pageQuery, o comparison, link func(from, to string) template.URL) {
	for i := range o.To {
		page.addColumn(newPageHeading(&o.To[i]))
	}
	var seen map[[2]int]cellFlows
	if q.Flows == flowsShown && p.flows != nil {
		page.Flows, seen = p.flowsOf(q, o.Overview)
		page.Flows.Live = !page.Static
	}
	for row := range o.From {
		r := pageRow{pageHeading: newPageHeading(&o.From[row])}
		for column := range o.To {
			cell := newPageCell(o.Overview, row, column, o.change(row, column), page.Compared)
			cell.addFlows(seen[[2]int{row, column}])
			cell.Link = link(o.From[row].String(), o.To[column].String())
			r.Cells = append(r.Cells, cell)
		}
		page.addRow(r)
	}
}

// fillGraph adds the graph: that of workloads also where the matrix is that of namespaces, unless
// there are too many.
func (p *pages) fillGraph(page *matrixPage, q pageQuery, o comparison, shown, before *state) error {
	cell := template.URL("#cell-")
	if q.By == "namespace" && p.workloads(shown, q) <= maxShown {
		q.By, cell = "workload", "" // a file has reasons of its matrix only
		var err error
		if o, err = p.compare(q, shown, before); err != nil {
			return err
		}
	}
	if !page.Static {
		cell = template.URL("cell?" + q.encode())
	}
	page.Graph = newPageGraph(o, cell)
	page.Graph.Unit = cmp.Or(q.By, "workload") + "s"
	return nil
}

// linker returns a function that returns the link to the cell of two sides, which is empty if the
// page has no reasons for it.
func (p *pages) linker(static bool, q pageQuery, o *reachability.Overview) func(from, to string) template.URL {
	rows, columns := placesOf(o.From), placesOf(o.To)
	return func(from, to string) template.URL {
		row, isRow := rows[from]
		column, isColumn := columns[to]
		switch {
		case !isRow || !isColumn:
			return ""
		case static:
			return template.URL("#" + cellID(row, column))
		}
		return template.URL("cell?" + q.encode("from", from, "to", to))
	}
}

func cellID(row, column int) string { return fmt.Sprintf("cell-%d-%d", row, column) }

func cellTitle(from, to *reachability.Side) string { return from.String() + " → " + to.String() }

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
	first := len(page.Rows) - 1
	for first >= 0 && page.Rows[first].Span == 0 {
		first--
	}
	if first >= 0 && page.Rows[first].Group == r.Group {
		page.Rows[first].Span++
	} else {
		r.Span = 1
	}
	page.Rows = append(page.Rows, r)
}

// newPageCell returns the cell without its link. than is what the change is compared with.
func newPageCell(o *reachability.Overview, row, column int, change cellChange, than string) pageCell {
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
	c.Gained = change.gained.text(o.Port)
	if c.Gained != "" {
		c.Class, c.Meaning = c.Class+" gained", c.Meaning+"; "+c.Gained+" more than "+than
	}
	c.Lost = change.lost.text(o.Port)
	if c.Lost != "" {
		c.Class, c.Meaning = c.Class+" lost", c.Meaning+"; "+c.Lost+" less than "+than
	}
	return c
}

// cellChange is the ports that a cell has gained and lost.
type cellChange struct{ gained, lost portsChange }

// portsChange is ports that change for every pair of pods, and those that do for some.
type portsChange struct{ every, some reachability.PortSet }

// text names the ports. If only one port is looked at, that is its name.
func (c portsChange) text(only reachability.Port) string {
	if only != (reachability.Port{}) {
		name := trafficName(only)
		switch {
		case !c.every.Empty():
			return name
		case !c.some.Empty():
			return partly + name
		}
		return ""
	}
	var parts []string
	if !c.every.Empty() {
		parts = append(parts, c.every.String())
	}
	if !c.some.Empty() {
		parts = append(parts, partly+c.some.String())
	}
	return strings.Join(parts, " ")
}

// changesOf returns a function that says what a cell of after has gained and lost. A side that
// is new had nothing before.
func changesOf(before, after *reachability.Overview) func(row, column int) cellChange {
	rows, columns := placesOf(before.From), placesOf(before.To)
	return func(row, column int) cellChange {
		var was, wasAny reachability.PortSet
		r, ok := rows[after.From[row].String()]
		c, also := columns[after.To[column].String()]
		if ok && also {
			was = before.Every(r, c)
			wasAny = was.Union(before.Some(r, c))
		}
		is := after.Every(row, column)
		isAny := is.Union(after.Some(row, column))
		return cellChange{
			gained: gains(was, wasAny, is, isAny),
			lost:   gains(is, isAny, was, wasAny),
		}
	}
}

// gains returns the ports that all pairs of pods have gained, and those that some have.
func gains(was, wasAny, is, isAny reachability.PortSet) portsChange {
	every := is.Without(wasAny)
	return portsChange{every, is.Without(was).Union(isAny.Without(wasAny)).Without(every)}
}

func placesOf(sides []reachability.Side) map[string]int {
	places := map[string]int{}
	for i := range sides {
		places[sides[i].String()] = i
	}
	return places
}

// explainCell explains one connection of each kind in a cell: an allowed one, one allowed
// between only some of the pods, and a denied one.
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
		e := explainSides(s.cluster, o.Only(row, column, port), p.family)
		var text strings.Builder
		_ = printExplanation(&text, &e) // a Builder returns no errors
		texts = append(texts, text.String())
	}
	return texts
}

// typical returns a port in set that a reader knows: one that a pod of to declares or, if
// there is none, one that policies name. The set must not be empty.
func (s *state) typical(set reachability.PortSet, to *reachability.Side) reachability.Port {
	for _, member := range to.Members {
		for _, p := range s.declared[member.Name] {
			if set.Has(p.Proto, p.Port) {
				return reachability.Port{Proto: p.Proto, Number: p.Port}
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
