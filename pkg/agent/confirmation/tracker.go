package confirmation

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
)

// recheckEvery is how often a waiting request looks whether a problem is over.
const recheckEvery = 100 * time.Millisecond

// config configures a tracker.
type config struct {
	node string
	// problem returns why nothing is in force, nil if there is no reason.
	problem func(context.Context) error
	// following returns the kinds with Seen and Behind, and how often versions have gone back.
	following func() (kinds []inforce.Kind, restores int)
	// uncertain returns inforce.Answer.Uncertain; nil means that there is none.
	uncertain func() []inforce.Uncertain
}

// tracker knows what is in force, and serves it. Its methods may be called from any goroutine.
type tracker struct {
	cfg     config
	waiting chan struct{} // has an element for each request that waits

	mu       sync.Mutex
	versions map[string]version
	restores int           // when versions were in force
	changed  chan struct{} // closed when versions changes
}

// version is a version that is in force, and since when.
type version struct {
	text  string
	since time.Time
}

// newTracker returns a tracker to which nothing is in force.
func newTracker(cfg config) *tracker {
	return &tracker{cfg: cfg, waiting: make(chan struct{}, bounds.InForceWaiting), changed: make(chan struct{})}
}

// set is called when the changes of each kind up to a version are in force. restores is how often
// versions had gone back when these were seen: while it is lower than following says, they are numbers
// of a past that the server has forgotten, and nothing is in force.
func (t *tracker) set(versions map[string]string, restores int) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make(map[string]version, len(versions))
	for kind, text := range versions {
		all[kind] = version{text, now}
		if old := t.versions[kind]; old.text == text {
			all[kind] = old
		}
	}
	if maps.Equal(all, t.versions) && restores == t.restores {
		return
	}
	t.versions, t.restores = all, restores
	close(t.changed)
	t.changed = make(chan struct{})
}

// answer returns what is in force now.
func (t *tracker) answer(ctx context.Context) *inforce.Answer {
	a := &inforce.Answer{Node: t.cfg.node}
	t.mu.Lock()
	versions, before := t.versions, t.restores
	t.mu.Unlock()
	kinds, restores := t.cfg.following()
	a.Kinds = kinds
	for i := range kinds {
		if v, ok := versions[kinds[i].Kind]; ok && before == restores {
			kinds[i].Version, kinds[i].Seconds = v.text, time.Since(v.since).Seconds()
		}
	}
	if t.cfg.uncertain != nil {
		a.Uncertain = t.cfg.uncertain()
	}
	// After the versions: they are in force if there is no problem now.
	if err := t.cfg.problem(ctx); err != nil {
		a.Problem = strings.Join(strings.Fields(err.Error()), " ")
	}
	return a
}

// question is what a client asks.
type question struct {
	kind, version string
	wait          time.Duration
}

// parse reads the parameters kind, version and timeout, or none of them.
func parse(query url.Values) (q question, err error) {
	for name := range query {
		if !slices.Contains([]string{"kind", "version", "timeout"}, name) {
			return q, fmt.Errorf("unknown parameter %q: must be kind, version or timeout", name)
		}
	}
	q.kind, q.version = query.Get("kind"), query.Get("version")
	if (q.kind == "") != (q.version == "") {
		return q, fmt.Errorf("kind %q and version %q: one needs the other", q.kind, q.version)
	}
	if q.kind == "" {
		return q, nil
	}
	if err := checkVersion(q.version); err != nil {
		return q, err
	}
	q.wait = bounds.InForceWait
	if s := query.Get("timeout"); s != "" {
		if q.wait, err = time.ParseDuration(s); err != nil || q.wait < 0 || q.wait > bounds.InForceWait {
			return q, fmt.Errorf("timeout %q: must be a duration from 0s to %v", s, bounds.InForceWait)
		}
	}
	return q, nil
}

// checkVersion returns an error if a client cannot wait for a version.
func checkVersion(version string) error {
	if _, err := resourceversion.CompareResourceVersion(version, version); err != nil {
		return fmt.Errorf("version %q: must be the metadata.resourceVersion of an object, a positive number", version)
	}
	return nil
}

// ServeHTTP serves an inforce.Answer as JSON. If the request names a kind and a version, it waits until that
// is in force, but no longer than the timeout.
func (t *tracker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q, err := parse(r.URL.Query())
	if err == nil && q.kind != "" && !t.follows(q.kind) {
		err = fmt.Errorf("kind %q: the agent does not enforce it", q.kind)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if q.wait > 0 {
		select {
		case t.waiting <- struct{}{}:
			defer func() { <-t.waiting }()
		default:
			http.Error(w, fmt.Sprintf("%d requests wait already: ask with timeout=0s", bounds.InForceWaiting), http.StatusTooManyRequests)
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	// An error means that the client is gone.
	_ = json.NewEncoder(w).Encode(t.await(r.Context(), q))
}

// await returns an answer: the first in which the version is in force, or one at the end of the wait.
func (t *tracker) await(ctx context.Context, q question) *inforce.Answer {
	if q.wait == 0 {
		return t.answer(ctx)
	}
	end := time.NewTimer(q.wait)
	defer end.Stop()
	recheck := time.NewTicker(recheckEvery)
	defer recheck.Stop()
	for {
		changed := t.next()
		a := t.answer(ctx)
		if a.Check(q.kind, q.version) == nil {
			return a
		}
		select {
		case <-changed:
		case <-recheck.C:
		case <-end.C:
			return a
		case <-ctx.Done():
			return a
		}
	}
}

func (t *tracker) follows(kind string) bool {
	kinds, _ := t.cfg.following()
	return slices.ContainsFunc(kinds, func(k inforce.Kind) bool { return k.Kind == kind })
}

func (t *tracker) next() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changed
}
