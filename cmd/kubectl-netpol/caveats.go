package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"sigs.k8s.io/kube-network-policies/pkg/reachability"
)

// caveat is a field of an answer for JSON that says what the answer is to be read with.
type caveat struct {
	name   string
	values any // a list
}

// caveats returns those that there are: what could not be read, and what of the policies
// in force is not enforced as written.
func (o *options) caveats() []caveat {
	var all []caveat
	if len(o.limits) > 0 {
		all = append(all, caveat{"limits", o.limits})
	}
	if len(o.findings) > 0 {
		all = append(all, caveat{"findings", o.findings})
	}
	if len(o.ifEnforced) > 0 {
		all = append(all, caveat{"ifEnforced", o.ifEnforced})
	}
	return all
}

// notesOf returns the same for people, a line each.
func (o *options) notesOf() []string {
	var lines []string
	for _, limit := range o.limits {
		lines = append(lines, "Not read: "+limit+".")
	}
	for _, f := range o.findings {
		lines = append(lines, "Not enforced as written: "+findingLine(f))
	}
	return append(lines, ifEnforcedLines(o.ifEnforced)...)
}

func (o *options) printCaveats(w io.Writer) {
	for _, line := range o.notesOf() {
		fmt.Fprintln(w, line)
	}
}

// findingsOf returns what of the policies of a cluster is not enforced as written, with -n
// of those that can matter to the namespace.
func (o *options) findingsOf(c *reachability.Cluster) []reachability.Finding {
	var found []reachability.Finding
	for _, f := range c.Findings() {
		if o.namespace == "" || f.Policy.Namespace == "" || f.Policy.Namespace == o.namespace {
			found = append(found, reachability.NewFinding(f))
		}
	}
	return found
}

// withCaveats returns an answer for JSON, an object, with the caveats as its last fields.
func (o *options) withCaveats(answer any) any {
	all := o.caveats()
	if len(all) == 0 {
		return answer
	}
	return annotated{answer, all}
}

type annotated struct {
	answer  any
	caveats []caveat
}

// MarshalJSON adds the fields to those of the answer.
func (a annotated) MarshalJSON() ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(a.answer); err != nil {
		return nil, err
	}
	out.Truncate(out.Len() - len("}\n"))
	for _, c := range a.caveats {
		fmt.Fprintf(&out, ",%q:", c.name)
		if err := enc.Encode(c.values); err != nil {
			return nil, err
		}
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}
