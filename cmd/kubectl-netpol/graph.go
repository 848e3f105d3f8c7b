package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
)

// reachesAny reports whether some of the pods reach anything.
func reachesAny(o *reachability.Overview, row, column int) bool {
	return o.Cell(row, column) != [2]int32{}
}

// nodes returns the sides of both directions ordered by name, and the index of each name.
func nodes(o *reachability.Overview) (sides []*reachability.Side, index map[string]int) {
	all := map[string]*reachability.Side{}
	for _, list := range [][]reachability.Side{o.From, o.To} {
		for i := range list {
			all[list[i].String()] = &list[i]
		}
	}
	index = map[string]int{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		index[name] = len(sides)
		sides = append(sides, all[name])
	}
	return sides, index
}

// edgeLabel returns the label of an arrow, which is empty if only one port is shown.
func edgeLabel(o *reachability.Overview, row, column int) string {
	if o.Port != (reachability.Port{}) {
		return ""
	}
	text, _ := cellOf(o, row, column)
	return text
}

// printMatrixJSON writes an overview on one line. With one port, cells are true or false:
//
//	{"port":"80","protocol":"TCP","pods":["x/a",…],"allowed":{"x/a":{"x/b":true,…},…},"partly":{"x/a":["x/c",…]}}
//
// pods has the names of all sides. partly, which is omitted if empty, has the cells that
// only some of the pods reach; allowed has false for them. Without a port, only cells in
// which something is reached are included:
//
//	{"from":["x/a",…],"to":[…],"reaches":{"x/a":{"x/b":{"ports":["80/TCP",…],"partly":["53/UDP"]},…},…}}
//
// The caveats follow. The output is written piece by piece, because encoding a million
// cells at once takes gigabytes.
func printMatrixJSON(w io.Writer, o *reachability.Overview, caveats []caveat) error {
	j := &jsonWriter{out: bufio.NewWriter(w), caveats: caveats}
	if o.Port == (reachability.Port{}) {
		j.cells(o)
	} else {
		j.allowed(o)
	}
	fmt.Fprintln(j.out)
	return j.out.Flush()
}

type jsonWriter struct {
	out     *bufio.Writer
	caveats []caveat
}

// value writes a string, a struct of strings, or a list of those.
func (j *jsonWriter) value(v any) {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // these types always encode
	}
	j.out.Write(text)
}

// object writes an object with keys. value writes the value of the i-th key.
func (j *jsonWriter) object(keys []string, value func(i int)) {
	j.out.WriteByte('{')
	for i, key := range keys {
		if i > 0 {
			j.out.WriteByte(',')
		}
		j.value(key)
		j.out.WriteByte(':')
		value(i)
	}
	j.out.WriteByte('}')
}

// whole writes the object of an answer, followed by its caveats.
func (j *jsonWriter) whole(keys []string, value func(key string)) {
	all := slices.Clone(keys)
	for _, c := range j.caveats {
		all = append(all, c.name)
	}
	j.object(all, func(i int) {
		if i < len(keys) {
			value(keys[i])
		} else {
			j.value(j.caveats[i-len(keys)].values)
		}
	})
}

// sorted returns the sorted names of sides and their indexes.
func sorted(sides []reachability.Side) (names []string, places []int) {
	for i := range sides {
		places = append(places, i)
	}
	slices.SortFunc(places, func(a, b int) int { return strings.Compare(sides[a].String(), sides[b].String()) })
	for _, i := range places {
		names = append(names, sides[i].String())
	}
	return names, places
}

// sideNames returns the sorted names of all sides without duplicates.
func sideNames(o *reachability.Overview) []string {
	from, _ := sorted(o.From)
	to, _ := sorted(o.To)
	return slices.Compact(slices.Sorted(slices.Values(slices.Concat(from, to))))
}

// partlyOf returns by row the names of the columns that only some of its pods reach.
func partlyOf(o *reachability.Overview) (rows []string, columns [][]string) {
	from, rowAt := sorted(o.From)
	to, columnAt := sorted(o.To)
	for i, row := range rowAt {
		var found []string
		for k, column := range columnAt {
			if !o.Some(row, column).Empty() {
				found = append(found, to[k])
			}
		}
		if len(found) > 0 {
			rows, columns = append(rows, from[i]), append(columns, found)
		}
	}
	return rows, columns
}

// dependsOf returns by row and by the name of the column how cells depend on addresses that are not
// known.
func dependsOf(o *reachability.Overview) (rows []string, cells []map[string]string) {
	from, rowAt := sorted(o.From)
	for i, row := range rowAt {
		found := map[string]string{}
		for column := range o.To {
			if o.Some(row, column).Empty() {
				continue
			}
			if text := o.Partial(row, column).Depends; text != "" {
				found[o.To[column].String()] = text
			}
		}
		if len(found) > 0 {
			rows, cells = append(rows, from[i]), append(cells, found)
		}
	}
	return rows, cells
}

func (j *jsonWriter) allowed(o *reachability.Overview) {
	from, rowAt := sorted(o.From)
	to, columnAt := sorted(o.To)
	partlyRows, partlyColumns := partlyOf(o)
	keys := []string{"port", "protocol", "pods", "allowed"}
	if len(partlyRows) > 0 {
		keys = append(keys, "partly")
	}
	dependsRows, dependsCells := dependsOf(o)
	if len(dependsRows) > 0 {
		keys = append(keys, "depends")
	}
	j.whole(keys, func(key string) {
		switch key {
		case "port":
			j.value(o.Port.String())
		case "protocol":
			j.value(o.Port.Proto.String())
		case "pods":
			j.value(sideNames(o))
		case "allowed":
			j.object(from, func(row int) {
				j.object(to, func(column int) {
					fmt.Fprint(j.out, !o.Every(rowAt[row], columnAt[column]).Empty())
				})
			})
		case "partly":
			j.object(partlyRows, func(i int) { j.value(partlyColumns[i]) })
		case "depends":
			j.object(dependsRows, func(i int) { j.value(dependsCells[i]) })
		}
	})
}

func (j *jsonWriter) cells(o *reachability.Overview) {
	from, rowAt := sorted(o.From)
	to, columnAt := sorted(o.To)
	keys := []string{"from", "to", "reaches"}
	j.whole(keys, func(key string) {
		switch key {
		case "from":
			j.value(from)
		case "to":
			j.value(to)
		case "reaches":
			j.object(from, func(row int) {
				var names []string
				var at []int
				for k, column := range columnAt {
					if reachesAny(o, rowAt[row], column) {
						names, at = append(names, to[k]), append(at, column)
					}
				}
				j.object(names, func(k int) {
					every, some := o.Every(rowAt[row], at[k]), o.Some(rowAt[row], at[k])
					parts := map[string]any{"ports": every.Strings()}
					if !some.Empty() {
						parts["partly"] = some.Strings()
						if text := o.Partial(rowAt[row], at[k]).Depends; text != "" {
							parts["depends"] = text
						}
					}
					j.value(parts)
				})
			})
		}
	})
}
