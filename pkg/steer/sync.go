package steer

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/klog/v2"
	"sigs.k8s.io/knftables"
)

// layout tells what stands under the table's name.
type layout uint8

const (
	absent  layout = iota // nothing
	foreign               // other objects than ours, e.g. of an older version
	ours                  // exactly our chains, sets and counter
)

// ruleHandles are the handles of the rules of each chain, in order. The kernel
// gives no handle twice in the life of a table, so that equal handles are equal
// rules.
type ruleHandles map[string][]int

// held is what the kernel holds.
type held struct {
	layout layout
	rules  ruleHandles
	sets   contents // nil elements: something in there that we do not write
}

// emptyTable is what a table that does not exist holds.
func emptyTable() *held { return &held{layout: absent, sets: Sets{}.contents()} }

// apply brings the kernel from what it holds to what w wants; a nil w wants
// only the base.
func (s *Steerer) apply(ctx context.Context, w *wish) error {
	if err := s.look(ctx); err != nil {
		return err
	}
	logger := klog.FromContext(ctx)
	if w == nil && s.held.layout == foreign {
		// Replacing it now, with empty sets, would open a gap.
		logger.Info("A table of another layout stays in force until the first wish replaces it", "table", TableName)
		return nil
	}
	tx := s.nft.NewTransaction()
	base := s.held.layout != ours || !maps.EqualFunc(s.held.rules, s.installed, slices.Equal)
	if base {
		s.planBase(tx)
	}
	sets := s.held.sets
	if w != nil {
		planElements(tx, sets, w.sets)
		sets = w.sets
	}
	if tx.NumOperations() == 0 {
		return nil
	}
	if l := logger.V(6); l.Enabled() {
		l.Info("Transaction", "tx", tx.String())
	}
	if err := s.run(ctx, tx, base); err != nil {
		return err
	}
	s.held = &held{layout: ours, rules: s.installed, sets: sets}
	logger.V(2).Info("Steering updated", "operations", tx.NumOperations(), "base", base, "elements", sets.sizes())
	return nil
}

// run commits tx and, when it has laid the base, what nft cannot say.
func (s *Steerer) run(ctx context.Context, tx *knftables.Transaction, base bool) error {
	if err := s.nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("write table %s: %w", TableName, err)
	}
	if !base {
		return nil
	}
	if s.writeXTables != nil {
		if err := s.writeXTables(s.cfg); err != nil {
			return err
		}
	}
	rules, err := s.readRules(ctx)
	if err != nil {
		return err
	}
	s.installed = rules
	return nil
}

// look reads what the kernel holds, unless that is known.
func (s *Steerer) look(ctx context.Context) error {
	if s.held != nil {
		return nil
	}
	h, err := s.read(ctx)
	if err != nil {
		return fmt.Errorf("read table %s: %w", TableName, err)
	}
	s.held, s.verified = h, time.Now()
	return nil
}

// planBase lays the table, its chains and their rules into tx. It empties
// s.held of a table that tx removes.
func (s *Steerer) planBase(tx *knftables.Transaction) {
	switch s.held.layout {
	case foreign:
		tx.Add(&knftables.Table{})
		tx.Delete(&knftables.Table{})
		s.held = emptyTable()
		fallthrough
	case absent:
		tx.Add(&knftables.Table{})
		tx.Add(&knftables.Counter{Name: steeredCounter})
		for _, spec := range setSpecs {
			tx.Add(spec.object())
		}
	}
	all := chains(s.cfg)
	for _, c := range all {
		tx.Add(c.object())
	}
	for _, c := range all {
		s.planRules(tx, c)
	}
}

// planRules fills c. Where writeXTables will do that, it makes sure that
// divertChain drops until then; showChain lets packets go on.
func (s *Steerer) planRules(tx *knftables.Transaction, c chain) {
	if s.writeXTables != nil && (c.name == divertChain || c.name == showChain) {
		if c.name == showChain || len(s.held.rules[divertChain]) > 0 {
			return
		}
		c.rules = []string{"drop"}
	}
	tx.Flush(&knftables.Chain{Name: c.name})
	for _, r := range c.rules {
		tx.Add(&knftables.Rule{Chain: c.name, Rule: r})
	}
}

// planElements adds to tx what leads from have to want. Removals come first:
// an interval cannot be added while another one overlaps it.
func planElements(tx *knftables.Transaction, have, want contents) {
	for _, spec := range setSpecs {
		have, want := have[spec.name], want[spec.name]
		if have == nil {
			tx.Flush(&knftables.Set{Name: spec.name})
		}
		for _, e := range have.without(want) {
			tx.Delete(&knftables.Element{Set: spec.name, Key: e.key()})
		}
		for _, e := range want.without(have) {
			tx.Add(&knftables.Element{Set: spec.name, Key: e.key()})
		}
	}
}

// sizes is for the log.
func (c contents) sizes() map[string]int {
	sizes := make(map[string]int, len(c))
	for set, e := range c {
		sizes[set] = len(e)
	}
	return sizes
}
