package steer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/klog/v2"
	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft"
)

// writeAttempts bounds how often a write is planned again because other processes have committed. The
// last attempt is written at any generation, and the commits before it are verified later.
const writeAttempts = 5

// errConcurrentWrites means that other processes may have changed the table between writing the base
// and reading it.
var errConcurrentWrites = errors.New("other processes keep changing nftables while the table is written")

// errStandby means that another agent holds the table.
var errStandby = errors.New("another agent holds the table")

// sync is one run of the runner. If another process is known to have changed the table, sync reads it
// and repairs it in the same transaction that writes the desired state. Otherwise it writes the desired
// state before it verifies the table, so that changes do not wait for reading.
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
		err = s.retireFormer(ctx)
	}
	return err
}

func (s *Steerer) setSyncingSince(since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.syncingSince = since
}

// poll verifies the table if another process may have committed since it was read.
func (s *Steerer) poll(ctx context.Context) error {
	generation, err := s.kernel.generation(ctx)
	if err == nil && (generation == s.observed.read || s.commits.own(s.observed.read, generation)) {
		s.observed.generation, s.observed.read, s.verified = generation, generation, time.Now()
		return nil
	}
	s.observed = nil
	if !s.commits.notifying() {
		s.flush = true // verdicts are not part of the observed state, so they cannot be verified
	}
	return s.syncOnce(ctx, unverified{})
}

// syncOnce applies the desired state and records the result. changes are the notified changes by other
// processes.
func (s *Steerer) syncOnce(ctx context.Context, changes unverified) error {
	d := s.beginApplying()
	err := s.apply(ctx, d, changes)
	if errors.Is(err, errStandby) {
		s.skipApplying(d)
		return nil
	}
	if err != nil {
		s.observed = nil // the next run reads before it writes
	}
	first, since := s.endApplying(d, err)
	s.metrics.synced(err, s.observed)
	if first && s.cfg.Applied != nil {
		s.cfg.Applied(d.requested.Serial)
	}
	if !since.IsZero() {
		s.metrics.programming.Observe(time.Since(since).Seconds())
	}
	return err
}

// skipApplying records that d is not applied because another agent holds the table.
func (s *Steerer) skipApplying(d *desiredState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.applyingSince, s.inPlace = time.Time{}, false
	switch {
	case !d.final():
		s.health = errNotSynced
	case s.standby.Next:
		s.health = fmt.Errorf("the table is not taken over yet: %s", s.standby.Reason)
	default:
		s.health = nil
	}
}

// beginApplying returns the desired state, and records that it is being applied.
func (s *Steerer) beginApplying() *desiredState {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.applyingSince.IsZero() {
		s.applyingSince = s.pendingSince
	}
	s.pendingSince = time.Time{}
	return s.desired
}

// endApplying records the result of applying d. It reports whether d is newly applied, and since when its
// oldest change was pending, zero if unknown.
func (s *Steerer) endApplying(d *desiredState, err error) (first bool, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.health = err
	if err != nil {
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
	if s.newlyApplied != nil {
		close(s.newlyApplied)
		s.newlyApplied = nil
	}
	if s.desired != d {
		s.desired.since = s.desired.requested.Since // the earlier changes have been applied with d
	}
	return true, d.since
}

// apply writes the desired state d, or only the base if d is nil. The error is errStandby if another
// agent holds the table. Meanwhile no verdicts are written, because each such write would start a new
// generation.
func (s *Steerer) apply(ctx context.Context, d *desiredState, changes unverified) error {
	if err := s.lockTable(ctx); err != nil {
		return err
	}
	defer s.unlockTable()
	s.beginAnswering(d)
	for attempt := 1; ; attempt++ {
		if err := s.refresh(ctx, d, changes); err != nil {
			return err
		}
		err := s.applyOnce(ctx, d, attempt == writeAttempts)
		if outdated := errors.Is(err, nft.ErrGeneration) || errors.Is(err, errConcurrentWrites); outdated && attempt < writeAttempts {
			s.catchUp(ctx)
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
}

// tableConfig describes the table as it is written now.
func (s *Steerer) tableConfig() Config {
	cfg := s.cfg
	cfg.answers = s.answers
	return cfg
}

// beginAnswering adds the chains for answers to the layout if d needs them.
func (s *Steerer) beginAnswering(d *desiredState) {
	if s.answers || !s.mayAnswer || d == nil || len(d.requested.Answered) == 0 {
		return
	}
	s.answers = true
	s.observed, s.expected, s.installed = nil, nil, base{} // the table has another layout
}

// catchUp advances the observed state to the current generation if it is certain that no other process
// has changed the table since. Otherwise the table must be read again.
func (s *Steerer) catchUp(ctx context.Context) {
	now, err := s.kernel.generation(ctx)
	if err == nil && s.observed != nil {
		s.commits.wait(ctx, now)
		s.observed.generation = s.commits.unchanged(s.observed.generation)
		if !later(now, s.observed.generation) {
			return
		}
	}
	s.observed = nil
}

// repaired reports a repair of the table after a change by another process.
func (s *Steerer) repaired(ctx context.Context) {
	s.metrics.repairs.Inc()
	klog.FromContext(ctx).Info("Table repaired", "table", TableName)
	if s.cfg.Repaired != nil {
		s.cfg.Repaired()
	}
}

// applyOnce applies d to the observed state. The error is nft.ErrGeneration if nftables has
// changed since, unless last is set.
func (s *Steerer) applyOnce(ctx context.Context, d *desiredState, last bool) error {
	logger := klog.FromContext(ctx)
	if !d.final() && s.observed.layout == incompatible {
		// Replacing it now, with empty sets, would open a gap. An operator may also have created it
		// to apply until the first snapshot.
		logger.Info("A table of another version or program stays in place until the first snapshot replaces it", "table", TableName)
		s.changed = false
		return nil
	}
	generation := s.observed.generation
	if last {
		generation = 0
	}
	tx := &nft.Transaction{}
	base := s.observed.layout != ours || !s.observed.base.equal(s.installed)
	if base {
		s.planBase(tx)
	}
	sets := s.observed.sets
	if d != nil {
		specs := s.tableConfig().specs()
		want := d.after(sets).fit(specs)
		planElements(tx, specs, sets, want)
		sets = want
	}
	s.planHolder(tx)
	changes := tx.NumOperations() > 0
	if base || s.flush {
		s.planFlush(tx)
		s.planOverrides(tx)
	}
	if tx.NumOperations() == 0 {
		return nil
	}
	if l := logger.V(6); l.Enabled() {
		l.Info("Transaction", "tx", tx.String())
	}
	var err error
	if base {
		err = s.writeBase(ctx, tx, generation)
	} else {
		err = s.writeElements(ctx, tx, generation, changes, sets)
	}
	if err != nil {
		return err
	}
	s.flush = false
	logger.V(2).Info("Steering updated", "operations", tx.NumOperations(), "base", base, "elements", sets.sizes())
	return nil
}

// write commits tx, which was planned for generation.
func (s *Steerer) write(ctx context.Context, tx *nft.Transaction, generation uint32) error {
	unsure := s.unsure
	s.unsure = true
	err := s.table.RunAt(ctx, tx, generation)
	if errors.Is(err, nft.ErrGeneration) {
		s.unsure = unsure
	}
	if err != nil {
		return fmt.Errorf("write table %s: %w", TableName, err)
	}
	return nil
}

// writeElements commits tx, which changes the contents of the sets to sets. changes is false if tx only
// flushes sets. If these are empty, the commit does not start a new generation.
func (s *Steerer) writeElements(ctx context.Context, tx *nft.Transaction, generation uint32, changes bool, sets contents) error {
	if err := s.write(ctx, tx, generation); err != nil {
		return err
	}
	now := *s.observed
	now.sets, now.holder = sets, s.cfg.Holder
	after, err := s.kernel.generation(ctx)
	if err != nil {
		return err
	}
	if changes && generation != 0 && consecutive(generation, after) {
		now.generation = after
		if s.observed.read == generation {
			now.read = after
		}
	}
	s.observed = &now
	return nil
}

// writeBase commits tx, which writes the base, and reads the result.
func (s *Steerer) writeBase(ctx context.Context, tx *nft.Transaction, generation uint32) error {
	if err := s.write(ctx, tx, generation); errors.Is(err, nft.ErrGeneration) {
		return err
	} else if err != nil {
		s.installed, s.replace = base{}, true
		return err
	}
	s.installed, s.replace = base{}, false
	now, err := s.read(ctx)
	if err != nil {
		return err
	}
	if now.layout != ours || generation == 0 || !s.unchangedSince(ctx, generation, now.generation) {
		s.observed = nil
		return errConcurrentWrites
	}
	s.observed, s.installed = now, now.base
	return nil
}

// unchangedSince reports whether it is certain that no other process has changed the table between the
// generation before our write and now.
func (s *Steerer) unchangedSince(ctx context.Context, before, now uint32) bool {
	if consecutive(before, now) {
		return true
	}
	s.commits.wait(ctx, now)
	return !later(now, s.commits.unchanged(before))
}

// refresh reads the table unless its state is known, and records whether another process has changed
// it. The error is errStandby if another agent holds the table.
func (s *Steerer) refresh(ctx context.Context, d *desiredState, changes unverified) error {
	if s.observed != nil {
		s.observed.generation = s.commits.unchanged(s.observed.generation)
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
	b, err := s.decideStandby(ctx, d)
	if err != nil {
		return err
	}
	if !s.setStandby(ctx, b) {
		return errStandby
	}
	if s.expected == nil {
		return nil // whatever another agent has written is no external change
	}
	s.report(ctx, changes)
	notified := changes.external > 0
	if s.unsure && !notified || o.sameAs(s.expected) {
		return nil
	}
	s.changed, s.flush = true, true
	if !notified {
		s.metrics.external.WithLabelValues(byPoll).Inc()
		klog.FromContext(ctx).Info("Another process changed the table, found by polling", "table", TableName)
	}
	return nil
}

func (s *Steerer) read(ctx context.Context) (*observedState, error) {
	o, err := s.kernel.read(ctx, layoutOf(s.tableConfig()))
	if err == nil && !s.answers && s.mayAnswer && slices.Contains(o.names["chain"], refuseChain) {
		s.answers = true // an earlier agent has written it
		o, err = s.kernel.read(ctx, layoutOf(s.tableConfig()))
	}
	if err != nil {
		return nil, fmt.Errorf("read table %s: %w", TableName, err)
	}
	o.read = o.generation
	return o, nil
}

// planBase adds the table, its chains and their rules to tx. If this removes an incompatible table, the
// observed state becomes emptyTable.
func (s *Steerer) planBase(tx *nft.Transaction) {
	if s.observed.layout == incompatible && s.observed.names == nil {
		tx.Add(&knftables.Table{})
		tx.Delete(&knftables.Table{})
		s.observed = emptyTable()
	}
	layout := layoutOf(s.tableConfig())
	if s.observed.layout != ours {
		tx.Add(&knftables.Table{})
		for _, name := range tableCounters {
			tx.Add(&knftables.Counter{Name: name})
		}
		for _, set := range layout.sets {
			tx.Add(set)
		}
	}
	for _, c := range layout.chains {
		tx.Add(c.object())
	}
	for _, c := range layout.chains {
		tx.Flush(&knftables.Chain{Name: c.name})
		for _, r := range c.rules {
			tx.AddRule(c.name, r)
		}
	}
	s.planRemovals(tx, layout.names())
}

// planRemovals removes the objects that our layout does not have from a table that is changed in place.
// The kernel drops queued packets only if one of them is a base chain.
func (s *Steerer) planRemovals(tx *nft.Transaction, keep map[string][]string) {
	surplus := func(kind string) []string {
		return slices.DeleteFunc(slices.Clone(s.observed.names[kind]), func(name string) bool { return slices.Contains(keep[kind], name) })
	}
	for _, name := range surplus("chain") {
		tx.Flush(&knftables.Chain{Name: name}) // they may jump to each other
	}
	for _, kind := range kinds {
		for _, name := range surplus(kind) {
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

// planElements adds the difference between have and want to tx. Removals come first, because an interval
// cannot be added while another one overlaps it.
func planElements(tx *nft.Transaction, specs []setSpec, have, want contents) {
	for _, spec := range specs {
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

// sizes returns the number of elements of each set that has any, for the log.
func (c contents) sizes() map[string]int {
	sizes := make(map[string]int, len(c))
	for set, e := range c {
		if len(e) > 0 {
			sizes[set] = len(e)
		}
	}
	return sizes
}
