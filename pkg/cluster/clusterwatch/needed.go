package clusterwatch

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/base/runner"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/podwatch"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

const (
	// MaxNeededWatches is the default of Config.MaxNeededWatches: enough for one watch per
	// namespace with pods on an ordinary node, and it usually keeps an agent below 64 watches
	// in total.
	MaxNeededWatches = 56
	// MostNeededWatches bounds the watches of other nodes' pods, including those that are no longer
	// needed. Each has a bit of 64; one bit is for the node's own pods and one for the saved state.
	MostNeededWatches = 62
)

const (
	// giveUpAfter is how long a watch continues after it is no longer needed.
	giveUpAfter = 5 * time.Minute
	// doubtFor is how long a pod is kept after the last watch lost it. Its labels may have
	// changed, so that another watch will report it. Packets wait longer than that.
	doubtFor = 500 * time.Millisecond
	// neededPatience is how long the first snapshot waits for pods of other nodes, and how
	// long a watch may take to list its pods before the agent is not ready.
	neededPatience = 5 * time.Second
	// savedPods is the bit of pods of the saved state.
	savedPods uint64 = 1 << 63
)

// neededPods watches the pods of this node, and the pods of other nodes that policies of this
// node's pods need. A pod in several watches is in the Cluster once.
type neededPods struct {
	cache  *Cache
	source func(PodQuery) cache.ListerWatcher
	shared *podwatch.Shared
	wake   chan struct{} // signals that needs or doubts have changed

	// The rest needs the Cache's mutex.
	begun    bool                  // all other kinds have been listed
	followed []clusterstate.PodSet // the needs of the last snapshot
	needs    []clusterstate.PodSet // the sets that are watched for it
	local    *podWatch
	watches  map[clusterstate.PodSet]*podWatch // of other nodes' pods
	known    map[[2]string]knownPod            // by namespace and name
	doubts   []doubt                           // the oldest first
	complete chan struct{}                     // closed when all needed sets have been listed once
}

// podWatch is one of the watches.
type podWatch struct {
	PodQuery
	mirror   *mirror
	bit      uint64 // unique among the watches
	listed   bool
	began    time.Time
	unneeded time.Time // since when it is no longer needed, zero while it is
	stop     context.CancelFunc
	ended    bool // it stops even if it is needed again
}

// end ends the watch. Its pods are forgotten once it has stopped.
func (w *podWatch) end() {
	w.ended = true
	w.stop()
}

// knownPod is the bookkeeping for a pod in the Cluster.
type knownPod struct {
	version uint64    // the newest version seen, 0 if it is not a number
	watches uint64    // the bits of the watches that have it
	due     time.Time // when the last doubt about it ends
}

// doubt is a pod that no watch had when the doubt began. Only the last doubt about a pod counts.
type doubt struct {
	pod [2]string
	due time.Time
}

func newNeededPods(c *Cache, source func(PodQuery) cache.ListerWatcher) *neededPods {
	p := &neededPods{
		cache:    c,
		source:   source,
		shared:   podwatch.NewShared(),
		wake:     make(chan struct{}, 1),
		watches:  map[clusterstate.PodSet]*podWatch{},
		known:    map[[2]string]knownPod{},
		complete: make(chan struct{}),
	}
	p.local = p.newWatch(PodQuery{Node: c.cfg.NodeName}, 1)
	p.export()
	return p
}

// export registers the metrics.
func (p *neededPods) export() {
	for state, listed := range map[string]bool{"listed": true, "unlisted": false} {
		p.cache.cfg.Registerer.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "netpol_pod_watches",
			Help:        "With --pod-watches=needed: watches of pods of other nodes.",
			ConstLabels: prometheus.Labels{"state": state},
		}, func() float64 { return float64(p.count(listed)) }))
	}
}

// count returns the number of watches of other nodes' pods that have been listed, or of those
// that have not.
func (p *neededPods) count(listed bool) int {
	p.cache.mu.Lock()
	defer p.cache.mu.Unlock()
	n := 0
	for _, w := range p.watches {
		if w.listed == listed {
			n++
		}
	}
	return n
}

func (p *neededPods) newWatch(q PodQuery, bit uint64) *podWatch {
	w := &podWatch{PodQuery: q, bit: bit, began: time.Now()}
	w.mirror = newMirror(p.cache, compile.KindPod, q.String(), p.source(q), stripPod(p.shared))
	w.mirror.watch = w
	return w
}

// follow records the needs of the last snapshot. It is called with the Cache's mutex held.
func (p *neededPods) follow(needs []clusterstate.PodSet) {
	if slices.Equal(needs, p.followed) {
		return
	}
	p.followed = needs
	if needs = clusterstate.Cover(needs, p.cache.cfg.MaxNeededWatches); !slices.Equal(needs, p.needs) {
		p.needs = needs
		runner.Signal(p.wake)
	}
}

// begin starts the needed watches once all other kinds have been listed, and waits up to
// neededPatience for their lists. Then it forgets pods that only the saved state has.
func (p *neededPods) begin(ctx context.Context) {
	p.cache.change(nil, func(v view) int {
		p.begun = true
		v.SetListed(p.listed())
		v.Snapshot()
		p.follow(v.Needs())
		p.noteComplete()
		return 0
	})
	patience := time.NewTimer(neededPatience)
	defer patience.Stop()
	select {
	case <-p.complete:
	case <-patience.C:
		klog.FromContext(ctx).Error(nil, "Pods that policies need are not listed yet; packets that depend on them wait", "of", p.missing())
	case <-ctx.Done():
		return
	}
	p.cache.change(nil, func(v view) int { return p.drop(v, savedPods) })
}

// healthy returns an error that names needed watches that have not been listed for
// neededPatience.
func (p *neededPods) healthy() error {
	p.cache.mu.Lock()
	defer p.cache.mu.Unlock()
	missing, since := p.unlisted()
	if since.IsZero() || time.Since(since) < neededPatience {
		return nil
	}
	errs := []error{errors.New("pods that policies need")}
	for _, q := range missing {
		if w := p.watches[q.PodSet]; w != nil {
			errs = append(errs, w.mirror.failures.notListed())
		} else {
			errs = append(errs, fmt.Errorf("not listed yet: %s", q))
		}
	}
	return errors.Join(errs...)
}

// missing returns the needed watches that have not been listed.
func (p *neededPods) missing() []PodQuery {
	p.cache.mu.Lock()
	defer p.cache.mu.Unlock()
	missing, _ := p.unlisted()
	return missing
}

// run starts and stops watches until ctx ends.
func (p *neededPods) run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		due := time.NewTimer(time.Until(p.adjust(ctx, &running, time.Now())))
		select {
		case <-p.wake:
		case <-due.C:
		case <-ctx.Done():
			return
		}
		due.Stop()
	}
}

// adjust starts and stops watches, forgets pods that no watch has, and returns when it must
// be called again.
func (p *neededPods) adjust(ctx context.Context, running *sync.WaitGroup, now time.Time) (next time.Time) {
	next = now.Add(giveUpAfter)
	p.cache.change(nil, func(v view) int {
		for set, w := range p.watches {
			switch {
			case slices.Contains(p.needs, set):
				w.unneeded = time.Time{}
				continue
			case w.unneeded.IsZero():
				w.unneeded = now
			}
			if until := w.unneeded.Add(giveUpAfter); !until.After(now) {
				w.end()
			} else if until.Before(next) {
				next = until
			}
		}
		for _, set := range p.needs {
			if p.watches[set] == nil {
				p.start(ctx, running, set)
			}
		}
		p.noteComplete()
		changed := p.settle(v, now)
		if len(p.doubts) > 0 && p.doubts[0].due.Before(next) {
			next = p.doubts[0].due
		}
		return changed
	})
	return next
}

// start watches a set. If all bits are in use, it first ends the watch that has been unneeded
// for longest; the set is watched after that.
func (p *neededPods) start(ctx context.Context, running *sync.WaitGroup, set clusterstate.PodSet) {
	used := savedPods | p.local.bit
	var oldest *podWatch
	for _, w := range p.watches {
		used |= w.bit
		if !w.unneeded.IsZero() && (oldest == nil || w.unneeded.Before(oldest.unneeded)) {
			oldest = w
		}
	}
	if used == ^uint64(0) {
		oldest.end()
		return
	}
	w := p.newWatch(PodQuery{PodSet: set}, 1<<bits.TrailingZeros64(^used))
	p.watches[set] = w
	ctx, w.stop = context.WithCancel(ctx)
	klog.FromContext(ctx).V(2).Info("Watch begins", "of", w.PodQuery)
	p.cache.currency.add(w.mirror)
	running.Add(1)
	go func() {
		defer running.Done()
		w.mirror.run(ctx)
		p.forgetWatch(w)
	}()
}

// forgetWatch forgets a watch that has stopped, and the pods that no other watch has. Nothing
// is forgotten when the Cache ends.
func (p *neededPods) forgetWatch(w *podWatch) {
	p.cache.currency.forget(w.mirror)
	p.cache.change(nil, func(v view) int {
		if !w.ended {
			return 0
		}
		delete(p.watches, w.PodSet)
		runner.Signal(p.wake) // it may be needed again
		changed := p.drop(v, w.bit)
		if v.SetListed(p.listed()) {
			changed++
		}
		return changed
	})
}

// drop forgets the pods that no other watch has.
func (p *neededPods) drop(v view, bit uint64) (changed int) {
	for pod, k := range p.known {
		if k.watches&bit == 0 {
			continue
		}
		k.watches &^= bit
		if k.watches != 0 {
			p.known[pod] = k
			continue
		}
		changed += p.forget(v, pod)
	}
	return changed
}

func (p *neededPods) forget(v view, pod [2]string) int {
	delete(p.known, pod)
	if v.Delete(compile.KindPod, pod[0], pod[1]) {
		return 1
	}
	return 0
}

// settle forgets the pods that no watch has had for doubtFor, unless a watch may have missed
// them.
func (p *neededPods) settle(v view, now time.Time) (changed int) {
	for len(p.doubts) > 0 && !p.doubts[0].due.After(now) {
		d := p.doubts[0]
		p.doubts = p.doubts[1:]
		switch k, found := p.known[d.pod]; {
		case !found || k.watches != 0 || !k.due.Equal(d.due):
		case p.mayHaveMissed(d.pod):
			p.doubt(d.pod, k, now)
		default:
			changed += p.forget(v, d.pod)
		}
	}
	return changed
}

// doubt schedules a pod that no watch has to be forgotten after doubtFor.
func (p *neededPods) doubt(pod [2]string, k knownPod, now time.Time) {
	k.due = now.Add(doubtFor)
	p.known[pod] = k
	p.doubts = append(p.doubts, doubt{pod, k.due})
}

// mayHaveMissed reports whether a watch that may select the pod was interrupted and has not
// run again for doubtFor. Packets that depend on an unlisted watch wait in any case.
func (p *neededPods) mayHaveMissed(pod [2]string) bool {
	for _, w := range p.watches {
		if w.listed && (w.Namespace == "" || w.Namespace == pod[0]) && p.cache.currency.watchedFor(w.mirror) < doubtFor {
			return true
		}
	}
	return false
}

// listed returns the sets that have been listed and are watched.
func (p *neededPods) listed() []clusterstate.PodSet {
	var sets []clusterstate.PodSet
	for set, w := range p.watches {
		if w.listed {
			sets = append(sets, set)
		}
	}
	return slices.SortedFunc(slices.Values(sets), func(a, b clusterstate.PodSet) int {
		return strings.Compare(a.Namespace+"/"+a.Labels, b.Namespace+"/"+b.Labels)
	})
}

// unlisted returns the needed watches that have not been listed, and when the first of them
// began, zero if none has.
func (p *neededPods) unlisted() (missing []PodQuery, since time.Time) {
	for _, set := range p.needs {
		w := p.watches[set]
		switch {
		case w == nil:
			missing = append(missing, PodQuery{PodSet: set})
		case !w.listed:
			missing = append(missing, w.PodQuery)
			if since.IsZero() || w.began.Before(since) {
				since = w.began
			}
		}
	}
	return missing, since
}

// noteListed records that the list of a watch is in the Cluster. It reports whether this can
// change verdicts.
func (p *neededPods) noteListed(v view, w *podWatch) bool {
	if w == p.local || w.listed {
		return false
	}
	w.listed = true
	changed := v.SetListed(p.listed())
	p.noteComplete()
	return changed
}

// noteComplete closes complete when all needed sets have been listed.
func (p *neededPods) noteComplete() {
	if missing, _ := p.unlisted(); len(missing) > 0 || !p.begun {
		return
	}
	select {
	case <-p.complete:
	default:
		close(p.complete)
	}
}

// set stores a pod that a watch reported. It reports whether this can change verdicts.
func (p *neededPods) set(v view, w *podWatch, s *stripped) bool {
	pod, version := [2]string{s.namespace, s.name}, number(s.version)
	k := p.known[pod]
	k.watches |= w.bit
	old := version != 0 && version < k.version
	k.version = max(k.version, version)
	p.known[pod] = k
	return !old && v.Set(s.object)
}

// delete records that a watch lost a pod, and reports whether this can change verdicts. A
// watch by labels loses a pod when its labels change.
func (p *neededPods) delete(v view, w *podWatch, s *stripped) bool {
	pod, version := [2]string{s.namespace, s.name}, number(s.version)
	k, found := p.known[pod]
	if !found || k.watches&w.bit == 0 {
		return false
	}
	if w.Labels == "" && (version == 0 || version >= k.version) {
		return p.forget(v, pod) > 0
	}
	k.watches &^= w.bit
	if k.watches != 0 {
		p.known[pod] = k
		return false
	}
	p.doubt(pod, k, time.Now())
	runner.Signal(p.wake)
	return v.Doubt(s.namespace, s.name)
}

// restore stores a pod of the saved state.
func (p *neededPods) restore(v view, o *compile.Pod) {
	p.known[[2]string{o.Endpoint.Namespace, o.Endpoint.Name}] = knownPod{watches: savedPods}
	v.Set(o)
}

// names yields the pods that a watch has.
func (p *neededPods) names(w *podWatch) iter.Seq2[string, string] {
	return func(yield func(namespace, name string) bool) {
		for pod, k := range p.known {
			if k.watches&w.bit != 0 && !yield(pod[0], pod[1]) {
				return
			}
		}
	}
}

// forgetVersions accepts the next version of every pod.
func (p *neededPods) forgetVersions() {
	for pod, k := range maps.All(p.known) {
		k.version = 0
		p.known[pod] = k
	}
}

// number parses a resource version, 0 if it is not a number.
func number(version string) uint64 {
	n, _ := strconv.ParseUint(version, 10, 64)
	return n
}
