package otlp

import (
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"sigs.k8s.io/kube-network-policies/pkg/flows"
)

// point is a flow, or several that differ in nothing that is exported: pods of one name at one
// address, one after the other.
type point struct {
	attributes attribute.Set
	first, now time.Time
	packets    int64
	bytes      int64
	counted    bool // bytes are known
}

// pointsOf returns a point for each flow, in the order of records.
func pointsOf(records []flows.Record) []point {
	var now time.Time
	var all []point
	places := map[attribute.Distinct]int{}
	for i := range records {
		r := &records[i]
		switch r.Type {
		case flows.TypeAgent:
			now = *r.Time
			continue
		case flows.TypeFlow:
		default:
			continue
		}
		set := attributesOf(r)
		place, known := places[set.Equivalent()]
		if !known {
			place = len(all)
			places[set.Equivalent()] = place
			all = append(all, point{attributes: set, first: *r.First, now: now})
		}
		all[place].add(r)
	}
	return all
}

func (p *point) add(r *flows.Record) {
	p.packets += int64(r.Count)
	if r.First.Before(p.first) {
		p.first = *r.First
	}
	if r.Bytes != nil {
		p.bytes, p.counted = p.bytes+int64(*r.Bytes), true
	}
}

// attributesOf returns what tells flows apart, as far as it is known. docs/flows.md has
// the names.
func attributesOf(r *flows.Record) attribute.Set {
	all := append(endOf("source.", r, r.Source), endOf("destination.", r, r.Destination)...)
	add := func(name, value string) {
		if value != "" {
			all = append(all, attribute.String(name, value))
		}
	}
	add("network.transport", strings.ToLower(r.Protocol))
	if r.Port > 0 {
		all = append(all, attribute.Int("destination.port", int(r.Port)))
	}
	decision := func(prefix string, d *flows.Decision) {
		add(prefix+"verdict", d.Verdict)
		add(prefix+"direction", d.Direction)
		add(prefix+"tier", d.Tier)
		add(prefix+"reason", d.Reason)
		if d.Policy != nil {
			add(prefix+"policy.kind", d.Policy.Kind)
			add(prefix+"policy.namespace", d.Policy.Namespace)
			add(prefix+"policy.name", d.Policy.Name)
		}
		if d.Rule != nil {
			all = append(all, attribute.Int(prefix+"rule", *d.Rule))
		}
	}
	decision("netpol.", &r.Decision)
	if r.Audit != nil {
		decision("netpol.audit.", r.Audit)
	}
	return attribute.NewSet(all...)
}

// endOf returns the attributes of an end of r: its address, unless it stands for those of
// a block or of a domain.
func endOf(prefix string, r *flows.Record, e *flows.End) []attribute.KeyValue {
	var all []attribute.KeyValue
	add := func(name, value string) {
		if value != "" {
			all = append(all, attribute.String(prefix+name, value))
		}
	}
	add("k8s.namespace.name", e.Namespace)
	add("k8s.pod.name", e.Pod)
	add("block", e.Block)
	add("domain", e.Domain)
	if r.Several(e) == "" {
		add("address", e.Address.String())
	}
	return all
}
