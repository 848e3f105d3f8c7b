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

// baseAttempts bounds how often the base is written while other processes commit.
const baseAttempts = 5

// errConcurrentWrites means that other processes committed while the base was
// written, so that what was read afterwards may not be what we wrote.
var errConcurrentWrites = errors.New("other processes keep changing nftables while the table is written")

// errStandby means that another agent holds the table.
var errStandby = errors.New("another agent holds the table")

// sync is one run of the runner. If the table is known to be changed, it is read and
// repaired in the same write as the desired state. Otherwise the desired state is
// written before the table is verified, so that changes do not wait for reading.
func (s *Steerer) sync(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	s.setSyncingSince(time.Now())
	defer s.setSyncingSince(time.Time{})
	if s.leaving.Load() {
		return s.release(ctx)
	}
	unverified := s.commits.unverified()
	if unverified.any() {
		s.observed, s.flush = nil, true
	}
	err := s.syncOnce(ctx, unverified)
	if err == nil && s.observed != nil && time.Since(s.verified) >= verifyInterval {
		err = s.poll(ctx)
	}
	if err == nil {
		s.commits.verified(unverified)
	}
	return err
}

func (s *Steerer) setSyncingSince(since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.syncingSince = since
}

// poll verifies the table unless there was no commit by another process since the observed
// state.
func (s *Steerer) poll(ctx context.Context) error {
	generation, err := s.kernel.generation(ctx)
	if err == nil && (generation == s.observed.generation || s.commits.own(s.observed.generation, generation)) {
		s.observed.generation, s.verified = generation, time.Now()
		return nil
	}
	s.observed = nil
	if !s.commits.notifying() {
		s.flush = true // an observed state has no verdicts
	}
	return s.syncOnce(ctx, unverified{})
}

// syncOnce applies the desired state and reports the result. changes are those by other
// processes that were notified.
func (s *Steerer) syncOnce(ctx context.Context, changes unverified) error {
	d := s.take()
	err := s.apply(ctx, d, changes)
	if errors.Is(err, errStandby) {
		s.stoodBy(d)
		return nil
	}
	if err != nil {
		s.observed = nil // the next run reads before it writes
	}
	first, since := s.taken(d, err)
	s.metrics.synced(err, s.observed)
	if first && s.cfg.Applied != nil {
		s.cfg.Applied(d.requested.Serial)
	}
	if !since.IsZero() {
		s.metrics.programming.Observe(time.Since(since).Seconds())
	}
	return err
}

// stoodBy records that d was not applied because another agent holds the table.
func (s *Steerer) stoodBy(d *desiredState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.applyingSince, s.inPlace = time.Time{}, false
	switch {
	case !d.final():
		s.health = errNotSynced
	case s.standby.next:
		s.health = fmt.Errorf("the table is not taken over yet: %s", s.standby.reason)
	default:
		s.health = nil
	}
}

// take returns the desired state, to be applied.
func (s *Steerer) take() *desiredState {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.applyingSince.IsZero() {
		s.applyingSince = s.pendingSince
	}
	s.pendingSince = time.Time{}
	return s.desired
}

// taken records the result of applying d. It reports whether d is newly applied and,
// if a change of the cluster was pending for it, since when.
func (s *Steerer) taken(d *desiredState, err error) (first bool, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.health = err; err != nil {
		return false, time.Time{}
	}
	s.applyingSince = time.Time{}
	if !d.final() {
		s.health = errNotSynced
	}
	if d == nil || s.applied == d {
		return false, time.Time{}
	}
	s.applied = d
	if s.desired != d {
		s.desired.since = s.desired.requested.Since // changes that were pending for d are applied
	}
	return true, d.since
}

// apply brings the table to the desired state d. A nil d means the base alone. The error
// is errStandby if another agent holds the table.
func (s *Steerer) apply(ctx context.Context, d *desiredState, changes unverified) error {
	for range baseAttempts {
		if err := s.refresh(ctx, d, changes); err != nil {
			return err
		}
		err := s.applyOnce(ctx, d)
		if errors.Is(err, errConcurrentWrites) {
			s.observed = nil
			continue
		}
		if err != nil {
			return err
		}
		s.expected, s.unsure = s.observed, false
		s.setHolder(s.observed.holder)
		s.setInPlace(s.observed.layout == ours)
		if s.changed {
			s.changed = false
			s.repaired(ctx)
		}
		return nil
	}
	return errConcurrentWrites
}

// repaired reports that the table is repaired after a change by another process.
func (s *Steerer) repaired(ctx context.Context) {
	s.metrics.repairs.Inc()
	klog.FromContext(ctx).Info("Table repaired", "table", TableName)
	if s.cfg.Repaired != nil {
		s.cfg.Repaired()
	}
}

// applyOnce applies d to the observed state.
func (s *Steerer) applyOnce(ctx context.Context, d *desiredState) error {
	logger := klog.FromContext(ctx)
	if !d.final() && s.observed.layout == incompatible {
		// Replacing it now, with empty sets, would open a gap. If an operator has made it,
		// that is what the operator wants until the first snapshot.
		logger.Info("A table of another version or program stays in place until the first snapshot replaces it", "table", TableName)
		s.changed = false
		return nil
	}
	tx := s.nft.NewTransaction()
	base := s.observed.layout != ours || !s.observed.base.equal(s.installed)
	if base {
		s.planBase(tx)
	}
	if base && !s.flushesLast() || !base && s.flush {
		s.planFlush(tx)
	}
	sets := s.observed.sets
	if d != nil {
		want := d.after(sets)
		planElements(tx, sets, want)
		sets = want
	}
	s.planHolder(tx)
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
	s.flush = false
	logger.V(2).Info("Steering updated", "operations", tx.NumOperations(), "base", base, "elements", sets.sizes())
	return nil
}

// commit runs write such that its commit is recognized as our own. It returns the
// generations before and after.
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

// writeElements commits tx, which changes the contents of the sets to sets.
func (s *Steerer) writeElements(ctx context.Context, tx *knftables.Transaction, sets contents) error {
	before, after, err := s.commit(ctx, s.runNFT(tx))
	if err != nil {
		return err
	}
	now := &observedState{generation: s.observed.generation, layout: ours, base: s.observed.base, sets: sets, named: true, holder: s.cfg.Holder}
	if before == s.observed.generation && alone(before, after) {
		now.generation = after
	}
	s.observed = now
	return nil
}

// alone reports whether there was one commit between two generations.
func alone(before, after uint32) bool { return after-before == 1 || before+1 == 0 && after == 1 }

// writeBase commits tx, which writes the base, then what nft cannot express, and
// observes the result. There are no writes of verdicts meanwhile.
func (s *Steerer) writeBase(ctx context.Context, tx *knftables.Transaction) error {
	if err := s.exclude(ctx); err != nil {
		return err
	}
	defer s.include()
	s.installed, s.replace = base{}, true
	_, after, err := s.commit(ctx, s.runNFT(tx))
	if err == nil && s.writeXTables != nil {
		_, after, err = s.commit(ctx, func(context.Context) error { return s.writeXTables(s.cfg) })
	}
	if err == nil && s.flushesLast() {
		flush := s.nft.NewTransaction()
		s.planFlush(flush)
		_, after, err = s.commit(ctx, s.runNFT(flush))
	}
	if err != nil {
		return err
	}
	s.replace = false
	now, err := s.readExcluding(ctx)
	if err != nil {
		return err
	}
	if now.generation != after || now.layout != ours {
		return errConcurrentWrites
	}
	s.observed, s.installed = now, now.base
	return nil
}

// refresh reads the table unless its observed state is known, and records whether
// another process has changed it. The error is errStandby if another agent holds it.
func (s *Steerer) refresh(ctx context.Context, d *desiredState, changes unverified) error {
	if s.observed != nil {
		return nil
	}
	o, err := s.read(ctx)
	if err != nil {
		return err
	}
	if s.replace && o.layout == ours {
		o.layout = incompatible
	}
	if s.replace {
		o.names = nil
	}
	s.observed, s.verified = o, time.Now()
	s.setHolder(o.holder)
	b, err := s.standing(ctx, d)
	if err != nil {
		return err
	}
	if !s.stand(ctx, b) {
		return errStandby
	}
	s.report(ctx, changes)
	notified := changes.external > 0
	if s.expected == nil || s.unsure && !notified || o.sameAs(s.expected) {
		return nil
	}
	s.changed, s.flush = true, true
	if !notified {
		s.metrics.external.WithLabelValues(byPoll).Inc()
		klog.FromContext(ctx).Info("Another process changed the table, found by polling", "table", TableName)
	}
	return nil
}

// read reads the table. There are no writes of verdicts meanwhile, so that they do not have
// it read again.
func (s *Steerer) read(ctx context.Context) (*observedState, error) {
	if err := s.exclude(ctx); err != nil {
		return nil, err
	}
	defer s.include()
	return s.readExcluding(ctx)
}

// readExcluding reads the table while exclude holds.
func (s *Steerer) readExcluding(ctx context.Context) (*observedState, error) {
	o, err := s.kernel.read(ctx)
	if err != nil {
		return nil, fmt.Errorf("read table %s: %w", TableName, err)
	}
	return o, nil
}

// planBase adds the table, its chains and their rules to tx. If tx removes an
// incompatible table, planBase empties the observed state.
func (s *Steerer) planBase(tx *knftables.Transaction) {
	if s.observed.layout == incompatible && s.observed.names == nil {
		tx.Add(&knftables.Table{})
		tx.Delete(&knftables.Table{})
		s.observed = emptyTable()
	}
	if s.observed.layout != ours {
		tx.Add(&knftables.Table{})
		for _, name := range tableCounters {
			tx.Add(&knftables.Counter{Name: name})
		}
		for _, spec := range setSpecs {
			tx.Add(spec.object())
		}
		tx.Add(holderObject())
		if s.cfg.shares() {
			for _, set := range shareSets() {
				tx.Add(set)
			}
		}
		if s.cfg.remembers() {
			for _, set := range verdictSets {
				tx.Add(set.object())
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
	s.planRemovals(tx, layoutNames(all))
}

// planRemovals removes the objects that another layout has beside ours from a table that
// is changed in place. Only if a base chain is among them the kernel drops the packets that
// wait in a queue.
func (s *Steerer) planRemovals(tx *knftables.Transaction, keep map[string][]string) {
	others := func(kind string) []string {
		return slices.DeleteFunc(slices.Clone(s.observed.names[kind]), func(name string) bool { return slices.Contains(keep[kind], name) })
	}
	for _, name := range others("chain") {
		tx.Flush(&knftables.Chain{Name: name}) // they may jump to each other
	}
	for _, kind := range kinds {
		for _, name := range others(kind) {
			switch kind {
			case "chain":
				tx.Delete(&knftables.Chain{Name: name})
			case "set":
				tx.Delete(&knftables.Set{Name: name})
			case "counter":
				tx.Delete(&knftables.Counter{Name: name})
			}
		}
	}
}

// planRules adds the rules of c to tx. Where writeXTables will write the rules later,
// it makes divertChain and overflowChain drop until then. Empty, auditChain and
// showChain let packets go on.
func (s *Steerer) planRules(tx *knftables.Transaction, c chain) {
	if s.writeXTables != nil && slices.Contains([]string{divertChain, overflowChain, auditChain, showChain}, c.name) {
		if c.name == auditChain || c.name == showChain || s.intact(c.name) {
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
// is as we wrote it or, at start, as an earlier agent may have written it.
func (s *Steerer) intact(chain string) bool {
	rules := s.observed.base.rules[chain]
	if s.expected == nil || s.expected.layout != ours {
		return len(rules) > 0
	}
	return len(rules) > 0 && slices.Equal(rules, s.expected.base.rules[chain])
}

// planElements adds the difference between have and want to tx. Removals come first
// because an interval cannot be added while another one overlaps it.
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

// sizes returns the number of elements of each set, for the log.
func (c contents) sizes() map[string]int {
	sizes := make(map[string]int, len(c))
	for set, e := range c {
		sizes[set] = len(e)
	}
	return sizes
}
