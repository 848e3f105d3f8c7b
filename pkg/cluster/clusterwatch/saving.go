package clusterwatch

import (
	"context"
	"errors"
	"io/fs"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/base/runner"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/podwatch"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/statefile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

const (
	// saveDelay is how long after a change the state is saved. Pods and nodes change all the
	// time, so saveDelayPods is longer: to a restarted agent an unknown pod fails closed, but
	// an unknown policy is not enforced.
	saveDelay, saveDelayPods = time.Second, 10 * time.Second
	// After a save, the next one waits savePause times as long as the save took.
	savePause = 20
)

// saving schedules saves of the state.
type saving struct {
	refresh time.Duration // interval of saves without a change
	poked   chan struct{} // signals that the next save is earlier

	mu       sync.Mutex
	due      time.Time // zero until the first change
	earliest time.Time
	pending  bool // a change is not saved yet
}

// newSaving returns a schedule that keeps an unchanged state younger than maxAge.
func newSaving(maxAge time.Duration) *saving {
	return &saving{refresh: maxAge / 4, poked: make(chan struct{}, 1)}
}

// changed schedules a save after a change of objects of a kind.
func (s *saving) changed(kind *compile.Kind) {
	delay := saveDelay
	if kind == compile.KindPod || kind == compile.KindNode {
		delay = saveDelayPods
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = true
	s.saveAt(time.Now().Add(delay))
}

// soon schedules pending changes without the delay.
func (s *saving) soon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending {
		s.saveAt(time.Now())
	}
}

// saveAt schedules a save at the given time or earlier, but not before earliest. It is called
// with the mutex held.
func (s *saving) saveAt(at time.Time) {
	if at.Before(s.earliest) {
		at = s.earliest
	}
	if s.due.IsZero() || at.Before(s.due) {
		s.due = at
		runner.Signal(s.poked)
	}
}

// begin records the start of a save: later changes are not in it.
func (s *saving) begin(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due, s.pending = now.Add(s.refresh), false
}

// saved records how long a save took.
func (s *saving) saved(now time.Time, duration time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.earliest = now.Add(savePause * duration)
	if s.due.Before(s.earliest) {
		s.due = s.earliest
	}
}

func (s *saving) next() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.due
}

// save saves the state until ctx ends, and then once more, unless the agent that took over
// from this one has saved it.
func (c *Cache) save(ctx context.Context) {
	for {
		due := time.NewTimer(time.Until(c.saving.next()))
		select {
		case <-due.C:
			c.write(ctx)
		case <-c.saving.poked:
		case <-ctx.Done():
			if !c.cfg.Saved.Replaced() {
				c.write(ctx)
			}
			return
		}
		due.Stop()
	}
}

// saveSoon saves changes without the delay. It is called when the API server fails: until
// that answers again, a restarted agent knows only the saved state.
func (c *Cache) saveSoon() {
	if c.saving != nil {
		c.saving.soon()
	}
}

// write saves the state. It only logs an error, because the next change leads to another
// attempt.
func (c *Cache) write(ctx context.Context) {
	if c.complete() != nil {
		c.saving.begin(time.Now())
		return // nodes are missing
	}
	began := time.Now()
	c.saving.begin(began)
	err := c.cfg.Saved.Write(c.state())
	c.saving.saved(time.Now(), time.Since(began))
	if err != nil {
		klog.FromContext(ctx).Error(err, "State is not saved; the next start waits for the API server or uses an older state")
	}
}

// state returns the current state. Its objects are immutable.
func (c *Cache) state() *statefile.State {
	s := &statefile.State{Header: statefile.Header{Known: c.currency.known(), Versions: map[string]string{}}}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.mirrors {
		s.Versions[m.kind.Name] = m.version
		for _, o := range m.objects {
			switch o := o.(type) {
			case *corev1.Namespace:
				s.Namespaces = append(s.Namespaces, o)
			case *corev1.Node:
				s.Nodes = append(s.Nodes, o)
			case *proposed.CIDRGroup:
				s.CIDRGroups = append(s.CIDRGroups, o)
			case compile.Object:
				s.Policies = append(s.Policies, o)
			}
		}
	}
	for p := range c.view.Pods() {
		s.Pods = append(s.Pods, p)
	}
	return s
}

// restore loads the saved state and returns its snapshot, nil if there is no usable one. It
// is called before the first list.
func (c *Cache) restore(ctx context.Context) *policy.Snapshot {
	if c.cfg.Saved == nil {
		return nil
	}
	logger := klog.FromContext(ctx)
	if err := c.cfg.Saved.Clean(time.Now()); err != nil {
		logger.Error(err, "Unfinished files of the snapshot cache are not removed")
	}
	s, err := c.cfg.Saved.Read(time.Now(), podwatch.NewShared().Share)
	if errors.Is(err, fs.ErrNotExist) {
		logger.Info("No saved state, waiting for the API server", "err", err)
		return nil
	}
	if err != nil {
		logger.Error(err, "Saved state is not used, waiting for the API server")
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.mirrors {
		m.version = s.Versions[m.kind.Name]
		m.restore(c.view, s)
	}
	c.saved, c.restored = true, true
	c.currency.restore(s.Known)
	logger.Info("Saved state is read", "known", s.Known, "policies", len(s.Policies), "pods", len(s.Pods))
	return c.view.Snapshot()
}

// publishSaved publishes s, the snapshot of the saved state, unless all kinds have been
// listed within SavedAfter. It returns when they have been listed. It also publishes changes
// of sandboxes until the first kind is listed: from then on the state is partly old and
// partly new.
func (c *Cache) publishSaved(ctx context.Context, s *policy.Snapshot, listed <-chan struct{}) {
	due := time.NewTimer(c.cfg.SavedAfter)
	defer due.Stop()
	select {
	case <-due.C:
	case <-listed:
		return
	case <-ctx.Done():
		return
	}
	klog.FromContext(ctx).Info("Saved state is in force until the initial lists have synced")
	c.metrics.setSource(fromCache)
	for {
		if s != nil {
			c.publish(ctx, s, time.Now(), false)
			c.reportOrder()
		}
		select {
		case <-c.sandboxes:
			s = c.savedSnapshot()
		case <-listed:
			return
		case <-ctx.Done():
			return
		}
	}
}

// savedSnapshot returns the snapshot of the saved state, nil if a kind has been listed.
func (c *Cache) savedSnapshot() *policy.Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.saved {
		return nil
	}
	return c.view.Snapshot()
}

// restore stores the saved objects of the kind.
func (m *mirror) restore(v view, s *statefile.State) {
	switch m.kind {
	case compile.KindNamespace:
		for _, o := range s.Namespaces {
			m.put(v, &stripped{name: o.Name, object: o})
		}
	case compile.KindNode:
		for _, o := range s.Nodes {
			m.put(v, &stripped{name: o.Name, object: o})
		}
		if m.hasOwnNode() { // a saved state without it proves nothing
			m.cache.ownNode.note(true)
		}
	case compile.KindCIDRGroup:
		for _, o := range s.CIDRGroups {
			m.put(v, &stripped{name: o.Name, object: o})
		}
	case compile.KindPod:
		for _, p := range s.Pods {
			v.Set(p)
		}
	default:
		for _, o := range s.Policies {
			if m.kind.Has(o) {
				m.put(v, &stripped{namespace: o.GetNamespace(), name: o.GetName(), object: o})
			}
		}
	}
}
