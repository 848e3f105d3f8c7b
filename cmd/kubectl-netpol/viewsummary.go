package main

import (
	"html/template"
	"slices"
	"strings"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/lint"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// maxLinks limits the workloads that are named beside a finding.
const maxLinks = 3

// pageSummary is what a reader has to know first.
type pageSummary struct {
	Parts    []summaryPart
	Findings []summaryFinding
}

// summaryPart is a list of workloads.
type summaryPart struct {
	Count int
	Title string
	Items []summaryItem
}

// summaryItem is the workloads about which the same is said.
type summaryItem struct {
	Text  string
	Links []summaryLink
}

type summaryLink struct {
	Name string
	Link template.URL
}

type summaryFinding struct {
	finding
	Links []summaryLink
	More  int // number of workloads that are not in Links
}

// add adds a workload to the item with that text.
func (s *summaryPart) add(text string, link summaryLink) {
	s.Count++
	i := slices.IndexFunc(s.Items, func(item summaryItem) bool { return item.Text == text })
	if i < 0 {
		i = len(s.Items)
		s.Items = append(s.Items, summaryItem{Text: text})
	}
	s.Items[i].Links = append(s.Items[i].Links, link)
}

// summarizer builds a summary.
type summarizer struct {
	*pages
	state *state
	query pageQuery // by workload
	// link returns the link to the cell of a workload and outside.
	link     func(side *reachability.Side, egress bool) summaryLink
	subjects map[lint.Object][]summarySubject
}

// summarySubject is a workload that a policy selects in a direction.
type summarySubject struct {
	*reachability.Side
	egress bool
}

// summary returns what a page says first. cell returns the link to a cell of its matrix.
func (p *pages) summary(q pageQuery, s *state, cell func(from, to string) template.URL) (*pageSummary, error) {
	byNamespace := q.By == "namespace"
	q.By = "workload"
	z := &summarizer{pages: p, state: s, query: q, subjects: map[lint.Object][]summarySubject{}}
	z.link = func(side *reachability.Side, egress bool) summaryLink {
		from, to := s.outside.String(), side.String()
		if byNamespace {
			to = side.Namespace
		}
		if egress {
			from, to = to, from
		}
		return summaryLink{side.String(), cell(from, to)}
	}
	open, free := summaryPart{Title: "open to the world"}, summaryPart{Title: "whose ingress no policy limits"}
	leaving, unlimited := summaryPart{Title: "may connect to the world"}, summaryPart{Title: "whose egress no policy limits"}
	if err := z.direction(&open, &free, q.ToNamespace, false); err != nil {
		return nil, err
	}
	if err := z.direction(&leaving, &unlimited, q.FromNamespace, true); err != nil {
		return nil, err
	}
	return &pageSummary{Parts: []summaryPart{open, leaving, free, unlimited}, Findings: z.findings()}, nil
}

// direction adds the workloads of a namespace that have connections with outside to open, and
// those that no policy selects to free.
func (z *summarizer) direction(open, free *summaryPart, namespace string, egress bool) error {
	port, err := z.query.port()
	if err != nil {
		return err
	}
	sides, err := z.sides(z.state, z.query, namespace)
	if err != nil {
		return err
	}
	sides = slices.DeleteFunc(sides, isNewOrOutside)
	from, to := []reachability.Side{z.state.outside}, sides
	if egress {
		from, to = to, from
	}
	o := z.state.cluster.Overview(from, to, port, z.family)
	for i := range sides {
		row, column := 0, i
		if egress {
			row, column = i, 0
		}
		if reachesAny(o, row, column) {
			text, _ := cellOf(o, row, column)
			open.add(text, z.link(&sides[i], egress))
		}
		policies := z.state.cluster.PoliciesOf(&sides[i], egress)
		if len(policies) == 0 {
			free.add(sides[i].Namespace, z.link(&sides[i], egress))
		}
		if len(policies) == 0 && !egress { // what findings about a namespace are about
			object := lint.Object{Kind: compile.KindNamespace.Name, Name: sides[i].Namespace}
			z.subjects[object] = append(z.subjects[object], summarySubject{&sides[i], egress})
		}
		for _, ref := range policies {
			object := lint.Object{Kind: ref.Kind, Namespace: ref.Namespace, Name: ref.Name}
			z.subjects[object] = append(z.subjects[object], summarySubject{&sides[i], egress})
		}
	}
	return nil
}

// findings returns the findings of check with a few of the workloads that the policy selects in
// the direction of the field, or in any, or that no policy of the namespace selects.
func (z *summarizer) findings() []summaryFinding {
	var all []summaryFinding
	for _, f := range z.checked {
		found := summaryFinding{finding: f}
		subjects := z.subjects[f.Object]
		for direction, egress := range map[string]bool{"spec.ingress": false, "spec.egress": true} {
			if strings.HasPrefix(f.Field, direction) {
				subjects = slices.DeleteFunc(slices.Clone(subjects), func(s summarySubject) bool { return s.egress != egress })
			}
		}
		for _, subject := range subjects {
			link := z.link(subject.Side, subject.egress)
			switch {
			case slices.ContainsFunc(found.Links, func(l summaryLink) bool { return l.Name == link.Name }):
			case len(found.Links) < maxLinks:
				found.Links = append(found.Links, link)
			default:
				found.More++
			}
		}
		all = append(all, found)
	}
	return all
}
