package main

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/duration"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/words"
	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/pkg/base/printable"
)

// aged is a record with its age by the clock of its agent.
type aged struct {
	*flows.Record
	age time.Duration
}

// recordsOf returns the records of a type, most recent first. Ages are never negative.
func recordsOf(records []flows.Record, kind string) []aged {
	now := timesOf(records)
	var found []aged
	for i := range records {
		if r := &records[i]; r.Type == kind {
			lastTime := r.Last
			if kind == flows.TypeDenial {
				lastTime = r.Time
			}
			found = append(found, aged{r, max(0, now[r.Node].Sub(*lastTime))})
		}
	}
	slices.SortStableFunc(found, func(a, b aged) int { return cmp.Compare(a.age, b.age) })
	return found
}

// timesOf returns the time of each node's answer by the node's clock.
func timesOf(records []flows.Record) map[string]time.Time {
	times := map[string]time.Time{}
	for i := range records {
		if r := &records[i]; r.Type == flows.TypeAgent {
			times[r.Node] = *r.Time
		}
	}
	return times
}

// writeFlows writes a table of flows and, if denials is set, a table of denied packets.
func writeFlows(w io.Writer, records []flows.Record, denials bool) error {
	out := bufio.NewWriter(w)
	found := recordsOf(records, flows.TypeFlow)
	if len(found) == 0 {
		fmt.Fprintln(out, "No flows")
		return out.Flush()
	}
	writeColumns(out, flowRows(merged(found)))
	if single := recordsOf(records, flows.TypeDenial); denials && len(single) > 0 {
		rows := [][]string{{"NODE", "DENIED PACKET FROM", "TO", "PORT", "BY", "AGO"}}
		for _, d := range single {
			from := netip.AddrPortFrom(d.Source.Address, d.Source.Port).String()
			if d.Source.Pod != "" {
				from = endName(d.Source) + " " + from
			}
			rows = append(rows, []string{d.Node, from, endName(d.Destination), portName(d.Record), decider(&d.Decision), duration.HumanDuration(d.age)})
		}
		fmt.Fprintln(out)
		writeColumns(out, rows)
	}
	return out.Flush()
}

// merged adds up flows whose rows differ in numbers only, such as those of the two addresses of
// dual-stack pods. found and the result are ordered by age.
func merged(found []aged) []aged {
	var all []aged
	index := map[string]int{}
	for _, f := range found {
		key := strings.Join([]string{f.Node, flowEnd(f.Record, f.Source), flowEnd(f.Record, f.Destination), portName(f.Record), f.Verdict, decider(&f.Decision), auditName(f.Audit)}, "\x00")
		i, known := index[key]
		if !known {
			index[key] = len(all)
			all = append(all, f)
			continue
		}
		sum := *all[i].Record
		sum.Count += f.Count
		if f.Bytes != nil {
			bytes := *f.Bytes + deref(sum.Bytes)
			sum.Bytes = &bytes
		}
		all[i].Record = &sum
	}
	return all
}

// flowRows returns a table of flows with its heading.
func flowRows(found []aged) [][]string {
	rows := [][]string{{"NODE", "FROM", "TO", "PORT", "VERDICT", "BY", "PACKETS", "LAST"}}
	counted := slices.ContainsFunc(found, func(f aged) bool { return f.Bytes != nil })
	if counted {
		rows[0] = append(rows[0], "BYTES")
	}
	audited := slices.ContainsFunc(found, func(f aged) bool { return f.Audit != nil })
	if audited {
		rows[0] = append(rows[0], "AUDIT")
	}
	for _, f := range found {
		row := []string{
			f.Node, flowEnd(f.Record, f.Source), flowEnd(f.Record, f.Destination), portName(f.Record), f.Verdict, decider(&f.Decision),
			fmt.Sprint(f.Count), duration.HumanDuration(f.age),
		}
		if counted {
			row = append(row, bytesName(f.Bytes))
		}
		if audited {
			row = append(row, auditName(f.Audit))
		}
		rows = append(rows, row)
	}
	return rows
}

// writeColumns writes rows with aligned columns.
func writeColumns(w io.Writer, rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i := range row {
			row[i] = printable.Text(row[i])
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	for _, row := range rows {
		line := ""
		for i, cell := range row {
			line += pad(cell, widths[i]+2)
		}
		fmt.Fprintln(w, strings.TrimRight(line, " "))
	}
}

// endName returns the pod, or the address with its domain names.
func endName(e *flows.End) string {
	switch {
	case e.Pod != "":
		return e.Namespace + "/" + e.Pod
	case len(e.Names) > 0:
		return fmt.Sprintf("%v (%s)", e.Address, strings.Join(e.Names, ", "))
	}
	return e.Address.String()
}

// flowEnd returns the end of a flow. If the end is several addresses, it is their block or
// domain instead of one address.
func flowEnd(r *flows.Record, e *flows.End) string {
	if several := r.Several(e); several != "" {
		return several
	}
	return endName(e)
}

// bytesName returns a number of bytes, or "" if it is unknown.
func bytesName(n *uint64) string {
	if n == nil {
		return ""
	}
	return fmt.Sprint(*n)
}

func portName(r *flows.Record) string {
	if r.Port == 0 {
		return r.Protocol
	}
	return fmt.Sprintf("%s %d", r.Protocol, r.Port)
}

// decider returns what decided: a policy with its matching rule, or the reason.
func decider(d *flows.Decision) string {
	by := d.Reason
	switch {
	case d.Policy != nil && d.Rule == nil:
		by = policyName(d.Policy) + ", " + d.Reason
	case d.Policy != nil:
		by = fmt.Sprintf("%s, %s rule %d", policyName(d.Policy), d.Direction, *d.Rule)
	}
	if d.Disputed {
		by += ", disputed address"
	}
	return by
}

func policyName(p *flows.Policy) string {
	if p.Namespace == "" {
		return p.Kind + " " + p.Name
	}
	return p.Kind + " " + p.Namespace + "/" + p.Name
}

// auditName returns what audited policies would decide, or "" if it is the same.
func auditName(d *flows.Decision) string {
	if d == nil {
		return ""
	}
	return d.Verdict + " by " + decider(d)
}

// writeLosses says what agents could not record.
func writeLosses(w io.Writer, records []flows.Record) {
	for i := range records {
		r := &records[i]
		if r.Type != flows.TypeAgent {
			continue
		}
		if r.Lost > 0 {
			fmt.Fprintf(w, "Node %s: %s in no flow, because they came too fast\n", r.Node, words.Count(r.Lost, "decision is", "decisions are"))
		}
		if r.Evicted > 0 {
			fmt.Fprintf(w, "Node %s: %s made room for others\n", r.Node, words.Count(r.Evicted, "flow", "flows"))
		}
	}
}
