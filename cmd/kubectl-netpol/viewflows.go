package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/pkg/base/printable"
)

const (
	// flowsShown is the value of pageQuery.Flows that shows flows.
	flowsShown = "shown"
	// flowsEvery is the minimum time between two readings, however many pages are open.
	flowsEvery = 2 * time.Second
	// maxFlowRows limits the flows on a page.
	maxFlowRows = 500
)

// flowReader reads the records of all agents.
type flowReader struct {
	read func() ([]answer, error)

	mu      sync.Mutex
	readAt  time.Time // of the latest reading
	answers []answer
	err     error
}

// flowReader returns nil if there is neither a live cluster nor a file of records.
func (v *viewOptions) flowReader(ctx context.Context) *flowReader {
	switch {
	case len(v.records) > 0:
		return &flowReader{read: func() ([]answer, error) { return readRecordFiles(v.records, nil) }}
	case len(v.files) > 0:
		return nil
	}
	return &flowReader{read: func() ([]answer, error) {
		agents, run, err := v.find(ctx)
		if err != nil {
			return nil, err
		}
		return askAll(ctx, agents, run, []string{agentCommand, "flows"}), nil
	}}
}

// latest returns records that are at most flowsEvery old, and when they were read.
func (f *flowReader) latest() ([]answer, time.Time, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.readAt.IsZero() || time.Since(f.readAt) >= flowsEvery {
		f.answers, f.err = f.read()
		f.readAt = time.Now()
	}
	return f.answers, f.readAt, f.err
}

// pageFlows is the data of the template "flows".
type pageFlows struct {
	Live    bool // the page reloads them
	Read    string
	Notes   []string // what is missing
	Heading []string
	Rows    [][]string
	More    int // number of flows that are not in Rows
}

// cellFlows counts the packets that agents decided between the sides of a cell.
type cellFlows struct{ Allowed, Denied, WouldDeny uint64 }

// Mark returns what a cell shows of it, each part with a CSS class.
func (c cellFlows) Mark() (marks []cellMark) {
	for _, m := range []cellMark{{"allowed", "▸", c.Allowed}, {"denied", "✗", c.Denied}, {"would", "?", c.WouldDeny}} {
		if m.Count > 0 {
			marks = append(marks, m)
		}
	}
	return marks
}

// cellMark is a part of a cell.
type cellMark struct {
	Class, Sign string
	Count       uint64
}

// flowsOf returns the flows between the namespaces of a query, and the counts of each cell.
func (p *pages) flowsOf(q pageQuery, o *reachability.Overview) (*pageFlows, map[[2]int]cellFlows) {
	answers, readAt, err := p.flows.latest()
	page := &pageFlows{Read: readAt.Format(time.TimeOnly)}
	if err != nil {
		page.Notes = append(page.Notes, "No flows: "+err.Error()+".")
	}
	var records []flows.Record
	for i := range answers {
		if err := answers[i].err; err != nil {
			page.Notes = append(page.Notes, fmt.Sprintf("No answer of node %s: %s.", answers[i].node, printable.Text(err.Error())))
		}
		for _, r := range answers[i].records {
			if r.Type == flows.TypeAgent || r.Type == flows.TypeFlow && within(r.Source, q.FromNamespace) && within(r.Destination, q.ToNamespace) {
				records = append(records, r)
			}
		}
	}
	found := recordsOf(records, flows.TypeFlow)
	page.More = max(0, len(found)-maxFlowRows)
	rows := flowRows(found[:len(found)-page.More])
	page.Heading, page.Rows = rows[0], rows[1:]
	return page, flowsOfCells(found, o)
}

func within(e *flows.End, namespace string) bool {
	return namespace == "" || e.Namespace == namespace
}

// flowsOfCells adds up flows by the indexes of their sides.
func flowsOfCells(found []aged, o *reachability.Overview) map[[2]int]cellFlows {
	rows, columns := placesOfPods(o.From), placesOfPods(o.To)
	cells := map[[2]int]cellFlows{}
	for _, f := range found {
		row, inRows := rows[f.Source.Namespace+"/"+f.Source.Pod]
		column, inColumns := columns[f.Destination.Namespace+"/"+f.Destination.Pod]
		if !inRows || !inColumns {
			continue
		}
		c := cells[[2]int{row, column}]
		switch {
		case f.Verdict == flows.Deny:
			c.Denied += f.Count
		case f.Audit != nil && f.Audit.Verdict == flows.Deny:
			c.WouldDeny += f.Count
		default:
			c.Allowed += f.Count
		}
		cells[[2]int{row, column}] = c
	}
	return cells
}

// placesOfPods returns the index of each pod's side.
func placesOfPods(sides []reachability.Side) map[string]int {
	places := map[string]int{}
	for i := range sides {
		for _, member := range sides[i].Members {
			places[member.Name] = i
		}
	}
	return places
}

// addFlows adds flows to what the cell shows.
func (c *pageCell) addFlows(f cellFlows) {
	c.Flows = f
	for _, part := range []struct {
		count uint64
		what  string
	}{{f.Allowed, "allowed"}, {f.Denied, "denied"}, {f.WouldDeny, "allowed that audited policies would deny"}} {
		if part.count > 0 {
			c.Meaning += fmt.Sprintf("; packets %s: %d", part.what, part.count)
		}
	}
}
