package integration

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2/ktesting"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/clusterwatch"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// patience bounds every wait for something that must happen.
const patience = 90 * time.Second

// claim is the decision that a TCP packet must get.
type claim struct {
	src, dst string
	port     uint16
	want     policy.Action
}

func allowed(src, dst string, port uint16) claim { return claim{src, dst, port, policy.Allow} }
func denied(src, dst string, port uint16) claim  { return claim{src, dst, port, policy.Deny} }

// check reports which claims a snapshot breaks; "" if it breaks none.
func check(s *policy.Snapshot, claims []claim) string {
	var wrong []string
	for _, c := range claims {
		got := s.Evaluate(policy.Query{Packet: packet.Packet{
			Src:   netip.AddrPortFrom(netip.MustParseAddr(c.src), 40000),
			Dst:   netip.AddrPortFrom(netip.MustParseAddr(c.dst), c.port),
			Proto: packet.TCP,
		}})
		if got.Action != c.want {
			wrong = append(wrong, fmt.Sprintf("%s -> %s:%d: got %v, want %v", c.src, c.dst, c.port, got, c.want))
		}
	}
	return strings.Join(wrong, "; ")
}

// view is the agent's view of a cluster: its informers and snapshots.
type view struct {
	t       *testing.T
	healthy func() error // names what cannot be read

	mu      sync.Mutex
	last    *policy.Snapshot
	changed chan struct{} // closed with the next snapshot
	claims  []claim       // that hold in every snapshot
	count   int
}

// newView starts the informers as the agent does, and stops them with the test.
// Every snapshot must fulfil the claims, the first one too.
func newView(t *testing.T, config *rest.Config, node string, claims ...claim) *view {
	t.Helper()
	return newViewOf(t, config, node, []*compile.Kind{}, claims...)
}

// newViewOf does the same with more kinds of policies.
func newViewOf(t *testing.T, config *rest.Config, node string, kinds []*compile.Kind, claims ...claim) *view {
	t.Helper()
	return startView(t, must[*clusterwatch.APIServer](t)(clusterwatch.Connect(config)), clusterwatch.Config{NodeName: node, Kinds: kinds}, claims...)
}

func startView(t *testing.T, source *clusterwatch.APIServer, cfg clusterwatch.Config, claims ...claim) *view {
	t.Helper()
	v := &view{t: t, changed: make(chan struct{}), claims: claims}
	cfg.Features, cfg.Registerer = compile.AllFeatures(), prometheus.NewRegistry()
	c, err := clusterwatch.New(source, cfg, v.publish)
	if err != nil {
		t.Fatal(err)
	}
	v.healthy = c.Healthy
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("informers ended: %v", err)
		}
	})
	return v
}

func (v *view) publish(_ context.Context, s *policy.Snapshot, _ time.Time, _ bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.last = s
	v.count++
	if wrong := check(s, v.claims); wrong != "" {
		v.t.Errorf("snapshot %d: %s", v.count, wrong)
	}
	close(v.changed)
	v.changed = make(chan struct{})
}

// eventually waits until the claims hold.
func (v *view) eventually(claims ...claim) {
	v.t.Helper()
	limit := time.After(patience)
	wrong := "no snapshot yet"
	for {
		v.mu.Lock()
		last, changed := v.last, v.changed
		v.mu.Unlock()
		if last != nil {
			if wrong = check(last, claims); wrong == "" {
				return
			}
		}
		select {
		case <-changed:
		case <-limit:
			v.t.Fatalf("after %s: %s", patience, wrong)
		}
	}
}

// always requires the claims of every snapshot from now on, including the last one.
func (v *view) always(claims ...claim) {
	v.t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	if wrong := check(v.last, claims); wrong != "" {
		v.t.Errorf("last snapshot: %s", wrong)
	}
	v.claims = append(v.claims, claims...)
}

// requests records the requests of clients.
type requests struct {
	mu  sync.Mutex
	all []request
}

type request struct {
	method, path string
	// fieldSelector and labelSelector are those of a list or watch.
	fieldSelector, labelSelector string
	// whole reports whether all objects are requested, by a list or a watch.
	whole bool
}

// note makes r record the requests of clients with this config.
func (r *requests) note(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(q *http.Request) (*http.Response, error) {
			query := q.URL.Query()
			watch := query.Get("watch") != ""
			r.mu.Lock()
			r.all = append(r.all, request{
				method:        q.Method,
				path:          q.URL.Path,
				fieldSelector: query.Get("fieldSelector"),
				labelSelector: query.Get("labelSelector"),
				whole:         !watch || query.Get("sendInitialEvents") != "",
			})
			r.mu.Unlock()
			return next.RoundTrip(q)
		})
	})
	return config
}

// matching returns the recorded requests that satisfy a predicate.
func (r *requests) matching(like func(request) bool) []request {
	r.mu.Lock()
	defer r.mu.Unlock()
	var some []request
	for _, q := range r.all {
		if like(q) {
			some = append(some, q)
		}
	}
	return some
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(q *http.Request) (*http.Response, error) { return f(q) }
