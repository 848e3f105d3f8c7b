package main

import (
	"encoding/json"
	"io"
	"slices"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
)

// onePortJSON is an overview of one port.
type onePortJSON struct {
	Port     string                     `json:"port"`
	Protocol string                     `json:"protocol"`
	Pods     []string                   `json:"pods"`    // the names of all sides
	Allowed  map[string]json.RawMessage `json:"allowed"` // by row, whether it reaches each column
	// Partly are, by row, the columns that only some of its pods reach.
	Partly  map[string][]string          `json:"partly,omitempty"`
	Depends map[string]map[string]string `json:"depends,omitempty"` // how cells depend on unknown addresses
}

// allPortsJSON is an overview of all ports. Its cells are those in which something is reached.
type allPortsJSON struct {
	From    []string                   `json:"from"`
	To      []string                   `json:"to"`
	Reaches map[string]json.RawMessage `json:"reaches"` // by row
}

// printMatrixJSON writes an overview, with the caveats after it, on one line.
func printMatrixJSON(w io.Writer, o *reachability.Overview, caveats []caveat) error {
	var answer any = &allPortsJSON{names(o.From), names(o.To), byRow(o, cellJSON)}
	if o.Port != (reachability.Port{}) {
		answer = newOnePortJSON(o)
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(annotated{answer, caveats})
}

// names returns the sorted names of sides, each once.
func names(sides []reachability.Side) []string {
	all := []string{}
	for i := range sides {
		all = append(all, sides[i].String())
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// byRow encodes the cells of each row by column, those that cell returns. Whole rows are encoded at
// once: a million cells as maps would take gigabytes.
func byRow(o *reachability.Overview, cell func(o *reachability.Overview, row, column int) any) map[string]json.RawMessage {
	rows := map[string]json.RawMessage{}
	for row := range o.From {
		columns := map[string]any{}
		for column := range o.To {
			if value := cell(o, row, column); value != nil {
				columns[o.To[column].String()] = value
			}
		}
		rows[o.From[row].String()], _ = json.Marshal(columns) // booleans and texts
	}
	return rows
}

// cellJSON returns the ports of a cell, nil if it has none.
func cellJSON(o *reachability.Overview, row, column int) any {
	if !reachesAny(o, row, column) {
		return nil
	}
	parts := map[string]any{"ports": o.Every(row, column).Strings()}
	if some := o.Some(row, column); !some.Empty() {
		parts["partly"] = some.Strings()
		if text := o.Partial(row, column).Depends; text != "" {
			parts["depends"] = text
		}
	}
	return parts
}

func newOnePortJSON(o *reachability.Overview) *onePortJSON {
	out := &onePortJSON{
		Port: o.Port.String(), Protocol: o.Port.Proto.String(), Pods: names(slices.Concat(o.From, o.To)),
		Allowed: byRow(o, func(o *reachability.Overview, row, column int) any { return !o.Every(row, column).Empty() }),
		Partly:  map[string][]string{}, Depends: map[string]map[string]string{},
	}
	for row := range o.From {
		from, depends := o.From[row].String(), map[string]string{}
		for column := range o.To {
			if o.Some(row, column).Empty() {
				continue
			}
			to := o.To[column].String()
			out.Partly[from] = append(out.Partly[from], to)
			if text := o.Partial(row, column).Depends; text != "" {
				depends[to] = text
			}
		}
		slices.Sort(out.Partly[from])
		if len(depends) > 0 {
			out.Depends[from] = depends
		}
	}
	return out
}
