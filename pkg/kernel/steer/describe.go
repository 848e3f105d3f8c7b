package steer

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Describe writes what the kernel has of the table, for reports of faults: its chains with their
// numbers of rules, and the elements of its sets. Names alone are written of a table that is not
// ours. Of sets that others write to, as for remembered verdicts, nothing is written.
func (s *Steerer) Describe(ctx context.Context, w io.Writer) error {
	cfg := s.cfg
	o, err := s.kernel.read(ctx, layoutOf(cfg))
	if err == nil && o.layout == incompatible {
		cfg.answers = true
		o, err = s.kernel.read(ctx, layoutOf(cfg))
	}
	if err != nil {
		return fmt.Errorf("read table %s: %w", TableName, err)
	}
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "table inet %s: %s, generation %d, holder %+v\n", TableName, []string{"absent", "incompatible", "ours"}[o.layout], o.generation, o.holder)
	for _, kind := range slices.Sorted(maps.Keys(o.names)) {
		fmt.Fprintf(out, "%ss: %s\n", kind, strings.Join(o.names[kind], " "))
	}
	for _, chain := range slices.Sorted(maps.Keys(o.base.rules)) {
		fmt.Fprintf(out, "chain %s: %d rules\n", chain, len(o.base.rules[chain]))
	}
	for _, set := range slices.Sorted(maps.Keys(o.sets)) {
		var keys []string
		for e := range o.sets[set] {
			keys = append(keys, strings.Join(e.key(), "."))
		}
		slices.Sort(keys)
		if len(keys) > 0 {
			fmt.Fprintf(out, "set %s: %s\n", set, strings.Join(keys, " "))
		}
	}
	return out.Flush()
}
