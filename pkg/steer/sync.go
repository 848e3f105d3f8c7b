package steer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/klog/v2"
	"sigs.k8s.io/knftables"
)

// baseAttempts bounds how often the base is laid while other processes commit.
const baseAttempts = 5

// errDisturbed is about a base that was laid while other processes committed, so
// that it cannot be told what is ours of what is there now.
var errDisturbed = errors.New("other processes change nftables while the table is written")

// sync is one run of the runner. What is known to be wrong is put right along with
// what is new; else it writes before it verifies, so that no change waits for the
// reading.
func (s *Steerer) sync(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	s.setSyncing(time.Now())
	defer s.setSyncing(time.Time{})
	doubts := s.commits.doubts()
	s.report(ctx, doubts)
	if doubts.any() {
		s.held = nil
	}
	err := s.syncOnce(ctx, doubts.foreign > 0)
	if err == nil && time.Since(s.verified) >= verifyInterval {
		err = s.poll(ctx)
	}
	if err == nil {
		s.commits.verified(doubts)
	}
	return err
}

func (s *Steerer) setSyncing(since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.syncing = since
}

// poll verifies the table unless nobody has committed anything since.
func (s *Steerer) poll(ctx context.Context) error {
	generation, err := s.kernel.generation(ctx)
	if err == nil && generation == s.held.generation {
		s.verified = time.Now()
		return nil
	}
	s.held = nil
	return s.syncOnce(ctx, false)
}

// syncOnce applies the latest wish and tells what came of it. notified says that a
// change by another process is known.
func (s *Steerer) syncOnce(ctx context.Context, notified bool) error {
	w := s.take()
	err := s.apply(ctx, w, notified)
	if err != nil {
		s.held = nil // the next run reads before it writes
	}
	first, since := s.taken(w, err)
	s.metrics.synced(err, s.held)
	if first && s.cfg.InForce != nil {
		s.cfg.InForce(w.of.Serial)
	}
	if !since.IsZero() {
		s.metrics.programming.Observe(time.Since(since).Seconds())
	}
	return err
}

// take returns the latest wish, to be applied.
func (s *Steerer) take() *wish {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.applied.IsZero() {
		s.applied = s.waiting
	}
	s.waiting = time.Time{}
	return s.wish
}

// taken notes what came of applying w. It reports whether w is newly in force and, if
// a change of the cluster has waited for it, since when.
func (s *Steerer) taken(w *wish, err error) (first bool, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.health = err; err != nil {
		return false, time.Time{}
	}
	s.applied = time.Time{}
	if w == nil {
		s.health = errNoSync // the base alone steers nobody
		return false, time.Time{}
	}
	if s.inForce == w {
		return false, time.Time{}
	}
	s.inForce = w
	if s.wish != w {
		s.wish.since = s.wish.of.Since // what has waited for w does not wait for it
	}
	return true, w.since
}

// apply brings the kernel from what it holds to what w wants; a nil w wants
// only the base.
func (s *Steerer) apply(ctx context.Context, w *wish, notified bool) error {
	for range baseAttempts {
		if err := s.look(ctx, notified); err != nil {
			return err
		}
		err := s.applyOnce(ctx, w)
		if errors.Is(err, errDisturbed) {
			s.held = nil
			continue
		}
		if err != nil {
			return err
		}
		s.expected, s.unsure = s.held, false
		if s.changed {
			s.changed = false
			s.repaired(ctx)
		}
		return nil
	}
	return errDisturbed
}

// repaired tells that the table is right again after another process had changed it.
func (s *Steerer) repaired(ctx context.Context) {
	s.metrics.repairs.Inc()
	klog.FromContext(ctx).Info("Table put right", "table", TableName)
	if s.cfg.Repaired != nil {
		s.cfg.Repaired()
	}
}

// applyOnce is apply from what s.held says.
func (s *Steerer) applyOnce(ctx context.Context, w *wish) error {
	logger := klog.FromContext(ctx)
	if w == nil && s.held.layout == foreign {
		// Replacing it now, with empty sets, would open a gap.
		logger.Info("A table of another layout stays in force until the first wish replaces it", "table", TableName)
		return nil
	}
	tx := s.nft.NewTransaction()
	base := s.held.layout != ours || !s.held.base.equal(s.installed)
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
	var err error
	if base {
		err = s.writeBase(ctx, tx)
	} else {
		err = s.writeElements(ctx, tx, sets)
	}
	if err != nil {
		return err
	}
	logger.V(2).Info("Steering updated", "operations", tx.NumOperations(), "base", base, "elements", sets.sizes())
	return nil
}

// commit makes a write, so that its commit can be told from those of others. It
// returns the generations before and after.
func (s *Steerer) commit(ctx context.Context, write func(context.Context) error) (before, after uint32, err error) {
	if before, err = s.kernel.generation(ctx); err != nil {
		return 0, 0, err
	}
	s.commits.begin(before)
	s.unsure = true
	err = write(ctx)
	after, errAfter := s.kernel.generation(ctx)
	err = errors.Join(err, errAfter)
	if s.commits.end(after, err != nil) {
		s.runner.Poke()
	}
	return before, after, err
}

// runNFT writes tx.
func (s *Steerer) runNFT(tx *knftables.Transaction) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := s.nft.Run(ctx, tx); err != nil {
			return fmt.Errorf("write table %s: %w", TableName, err)
		}
		return nil
	}
}

// writeElements commits tx, which makes the sets those given.
func (s *Steerer) writeElements(ctx context.Context, tx *knftables.Transaction, sets contents) error {
	before, after, err := s.commit(ctx, s.runNFT(tx))
	if err != nil {
		return err
	}
	now := &held{generation: s.held.generation, layout: ours, base: s.held.base, sets: sets}
	if before == s.held.generation && alone(before, after) {
		now.generation = after
	}
	s.held = now
	return nil
}

// alone reports whether there was one commit between two generations.
func alone(before, after uint32) bool { return after-before == 1 || before+1 == 0 && after == 1 }

// writeBase commits tx, which lays the base, and what nft cannot say, and reads how
// the kernel shows it.
func (s *Steerer) writeBase(ctx context.Context, tx *knftables.Transaction) error {
	s.installed, s.replace = base{}, true
	_, after, err := s.commit(ctx, s.runNFT(tx))
	if err == nil && s.writeXTables != nil {
		_, after, err = s.commit(ctx, func(context.Context) error { return s.writeXTables(s.cfg) })
	}
	if err != nil {
		return err
	}
	s.replace = false
	now, err := s.read(ctx)
	if err != nil {
		return err
	}
	if now.generation != after || now.layout != ours {
		return errDisturbed
	}
	s.held, s.installed = now, now.base
	return nil
}

// look reads what the kernel holds, unless that is known, and notes whether another
// process has made it something else than it should be.
func (s *Steerer) look(ctx context.Context, notified bool) error {
	if s.held != nil {
		return nil
	}
	h, err := s.read(ctx)
	if err != nil {
		return err
	}
	if s.replace && h.layout == ours {
		h.layout = foreign
	}
	s.held, s.verified = h, time.Now()
	if s.expected == nil || s.unsure && !notified || h.sameAs(s.expected) {
		return nil
	}
	s.changed = true
	if !notified {
		s.metrics.foreign.WithLabelValues(byPoll).Inc()
		klog.FromContext(ctx).Info("The table is not as it was left", "table", TableName)
	}
	return nil
}

func (s *Steerer) read(ctx context.Context) (*held, error) {
	h, err := s.kernel.read(ctx)
	if err != nil {
		return nil, fmt.Errorf("read table %s: %w", TableName, err)
	}
	return h, nil
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
		for _, name := range tableCounters {
			tx.Add(&knftables.Counter{Name: name})
		}
		for _, spec := range setSpecs {
			tx.Add(spec.object())
		}
		if s.cfg.shares() {
			for _, set := range shareSets() {
				tx.Add(set)
			}
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
// divertChain and overflowChain drop until then; showChain lets packets go on.
func (s *Steerer) planRules(tx *knftables.Transaction, c chain) {
	if s.writeXTables != nil && slices.Contains([]string{divertChain, overflowChain, showChain}, c.name) {
		if c.name == showChain || s.intact(c.name) {
			return
		}
		c.rules = []string{"drop"}
	}
	tx.Flush(&knftables.Chain{Name: c.name})
	for _, r := range c.rules {
		tx.Add(&knftables.Rule{Chain: c.name, Rule: r})
	}
}

// intact reports whether a chain may stay until writeXTables replaces its rules: it
// is as we wrote it or, at a start, as an earlier agent may have.
func (s *Steerer) intact(chain string) bool {
	rules := s.held.base.rules[chain]
	if s.expected == nil || s.expected.layout != ours {
		return len(rules) > 0
	}
	return len(rules) > 0 && slices.Equal(rules, s.expected.base.rules[chain])
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
