package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
)

// caveat is a JSON field that limits the meaning of an answer.
type caveat struct {
	name   string
	values any // a list
}

// caveats returns the caveats that apply: what could not be read, and which parts of the
// enforced policies are not enforced as written.
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

// notesOf returns the caveats as text, one per line.
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

// findingsOf returns the parts of a cluster's policies that are not enforced as written;
// with -n, only those that can affect the namespace.
func (o *options) findingsOf(c *reachability.Cluster) []reachability.Finding {
	var found []reachability.Finding
	for _, f := range c.Findings() {
		if o.namespace == "" || f.Policy.Namespace == "" || f.Policy.Namespace == o.namespace {
			found = append(found, reachability.NewFinding(f))
		}
	}
	return found
}

// withCaveats adds the caveats to a JSON answer as its last fields. The answer must be an
// object.
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
