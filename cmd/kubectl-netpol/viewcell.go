package main

import (
	"cmp"
	"fmt"
	"html/template"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
)

// cellPage is the data of the template "cell".
type cellPage struct {
	Title, Answer  string
	Static         bool
	Back, Inside   template.URL
	Hidden         []field
	Port, Protocol string
	Protocols      []string
	Problem        string
	Explanations   []pageExplanation // for each shown state
}

// field is a part of the query that the page's form keeps.
type field struct{ Name, Value string }

// cellPage explains the connections from one side to another.
func (p *pages) cellPage(q pageQuery, from, to string) *cellPage {
	page := &cellPage{
		Title: from + " → " + to, Back: template.URL("./?" + q.encode()),
		Hidden: []field{
			{"by", q.By}, {"from-namespace", q.FromNamespace}, {"to-namespace", q.ToNamespace}, {"selector", q.Selector},
			{"state", q.State}, {"audited", q.Audited}, {"flows", q.Flows}, {"from", from}, {"to", to},
		},
		Port: q.Port, Protocol: cmp.Or(q.Protocol, "TCP"), Protocols: protocols,
	}
	if q.By == "namespace" {
		inside := q
		inside.By, inside.FromNamespace, inside.ToNamespace = "workload", from, to
		page.Inside = template.URL("./?" + inside.encode())
	}
	if err := p.explain(page, q, from, to); err != nil {
		page.Problem = err.Error()
	}
	return page
}

func (p *pages) explain(page *cellPage, q pageQuery, from, to string) error {
	shown, before, err := p.stateOf(q)
	if err != nil {
		return err
	}
	states := []*state{shown}
	if before != nil {
		states = []*state{before, shown}
	}
	port, err := q.port()
	if err != nil {
		return err
	}
	for _, s := range states {
		o, err := p.pair(q, s, from, to, port)
		if err != nil && s == before { // a side is new
			page.Explanations = append(page.Explanations, pageExplanation{Title: s.name, Texts: []string{err.Error()}})
			continue
		}
		if err != nil {
			return err
		}
		e := pageExplanation{Texts: p.explainCell(s, o, 0, 0)}
		if len(states) > 1 {
			e.Title = s.name
		}
		page.Explanations = append(page.Explanations, e)
		page.Answer = newPageCell(o, 0, 0, cellChange{}, "").Meaning
	}
	return nil
}

// pair evaluates only two sides.
func (p *pages) pair(q pageQuery, s *state, from, to string, port reachability.Port) (*reachability.Overview, error) {
	q.Selector = ""
	sides, err := p.sides(s, q, "")
	if err != nil {
		return nil, err
	}
	places := placesOf(sides)
	pair := [2][]reachability.Side{}
	for i, name := range []string{from, to} {
		place, ok := places[name]
		if !ok {
			return nil, fmt.Errorf("%s %q does not exist or has no pod with an address", q.By, name)
		}
		pair[i] = sides[place : place+1]
	}
	return s.cluster.Overview(pair[0], pair[1], port, p.family), nil
}
