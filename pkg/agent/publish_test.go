package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2/ktesting"
	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/enforce"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
	"sigs.k8s.io/kube-network-policies/pkg/queue"
	"sigs.k8s.io/kube-network-policies/pkg/steer"
)

// fakeObserver is an observer that learns no names and records calls.
type fakeObserver struct {
	followed  int
	onFollow  func()
	resolvers []netip.AddrPort
	seen      []string
}

func (l *fakeObserver) Names(_, _ netip.Addr) *policy.Names { return nil }

func (l *fakeObserver) Follow(*policy.Snapshot) {
	l.followed++
	l.onFollow()
}

func (l *fakeObserver) Resolvers() []netip.AddrPort { return l.resolvers }

func (l *fakeObserver) Run(context.Context) error { return nil }

func (l *fakeObserver) Observe(payload []byte) { l.seen = append(l.seen, string(payload)) }

// administered returns a snapshot with a pod and two administrator's rules: one allows a
// domain, the other denies the rest.
func administered(addrs ...netip.Addr) *policy.Snapshot {
	pod := &policy.Endpoint{
		Namespace: "x", Name: "web", Egress: &policy.Chain{Rules: []policy.Rule{
			{Tier: policy.AdminTier, Action: policy.Allow, AnyPort: true, Peers: []policy.Peer{{Domains: []policy.Domain{{Name: "a.test"}}}}},
			{Tier: policy.AdminTier, AnyPeer: true, AnyPort: true},
		}},
	}
	endpoints := make(map[netip.Addr]*policy.Endpoint)
	for _, addr := range addrs {
		endpoints[addr] = pod
	}
	known := policy.NewEndpoints(endpoints)
	return policy.New(policy.Model{Endpoints: known, Local: policy.NewLocal(known, addrs)})
}

// setsOf lists the elements of all sets.
func setsOf(fake *knftables.Fake) string {
	fake.RLock()
	defer fake.RUnlock()
	var lines []string
	for name, set := range fake.Table.Sets {
		for _, e := range set.Elements {
			lines = append(lines, fmt.Sprint(name, " ", e.Key))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// latencies returns the sum of the latencies of all snapshots.
func latencies(t *testing.T, reg prometheus.Gatherer) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "netpol_snapshot_latency_seconds" {
			return family.Metric[0].GetHistogram().GetSampleSum()
		}
	}
	t.Fatal("no metric of snapshot latency")
	return 0
}

func TestObserverFollowsBeforeSteering(t *testing.T) {
	pod, resolver := netip.MustParseAddr("10.244.1.2"), netip.MustParseAddrPort("10.96.0.10:53")
	for _, tt := range []struct {
		observed bool
		want     string
	}{
		{true, "egress-v4 [10.244.1.2]\nhost-v4 [10.244.1.2]\nnames-v4 [10.244.1.2]\npods-v4 [10.244.1.2]\nresolvers-v4 [10.96.0.10 53]"},
		{false, "egress-v4 [10.244.1.2]\nhost-v4 [10.244.1.2]\npods-v4 [10.244.1.2]"},
	} {
		t.Run(fmt.Sprintf("observed %v", tt.observed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fake, reg := knftables.NewFake(knftables.InetFamily, steer.TableName), prometheus.NewRegistry()
				steerer, err := steer.NewFake(steer.Config{Queue: 100, Queues: 1, Mark: steer.DefaultMark, Registerer: reg}, fake)
				if err != nil {
					t.Fatal(err)
				}
				a := &agent{blocker: newTestBlocker(t, reg), enforcer: enforce.New(enforce.Config{Registerer: reg}), steerer: steerer, metrics: newMetrics(reg), ready: make(chan struct{})}
				a.follow(nil, nil, reg)
				l := &fakeObserver{resolvers: []netip.AddrPort{resolver}, onFollow: func() {
					select {
					case <-a.ready:
						t.Error("packets are decided before the observer follows")
					default:
					}
				}}
				if tt.observed {
					a.observer = l
				}
				_, ctx := ktesting.NewTestContext(t)
				ctx, cancel := context.WithCancel(ctx)
				ended := make(chan error)
				go func() { ended <- steerer.Run(ctx) }()
				a.publish(ctx, administered(pod), time.Now().Add(-3*time.Second), true)
				if got := latencies(t, reg); got != 3 {
					t.Errorf("latency %v s, want 3", got)
				}
				time.Sleep(time.Second) // of the bubble's clock
				if got := setsOf(fake); got != tt.want {
					t.Errorf("the sets hold\n%s\nwant\n%s", got, tt.want)
				}
				if l.followed > 0 != tt.observed {
					t.Errorf("followed %d times", l.followed)
				}
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestANodeIsClosedForWhatIsKnown: sandboxes that are not there close nothing, and their
// table does not delay that of the saved state.
func TestANodeIsClosedForWhatIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake, reg := knftables.NewFake(knftables.InetFamily, steer.TableName), prometheus.NewRegistry()
		steerer, err := steer.NewFake(steer.Config{Queue: 100, Queues: 1, Mark: steer.DefaultMark, Registerer: reg}, fake)
		if err != nil {
			t.Fatal(err)
		}
		a := &agent{steerer: steerer, booted: true}
		_, ctx := ktesting.NewTestContext(t)
		ctx, cancel := context.WithCancel(ctx)
		ended := make(chan error)
		go func() { ended <- steerer.Run(ctx) }()
		a.closeSandboxes(nil)
		a.closeRanges(nil)
		synctest.Wait()
		if fake.Table != nil {
			t.Error("a table is written although no address is known")
		}
		a.closeSandboxes([]clusterstate.Sandbox{{Addrs: []netip.Addr{netip.MustParseAddr("10.244.1.2")}}})
		time.Sleep(time.Second) // of the bubble's clock
		if got, want := setsOf(fake), "egress-v4 [10.244.1.2]\ningress-v4 [10.244.1.2]"; got != want {
			t.Errorf("the sets hold\n%s\nwant\n%s", got, want)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestObservedPacketsAreAccepted(t *testing.T) {
	l := &fakeObserver{}
	for _, last := range []bool{false, true} {
		if got := observe(l)(queue.Packet{Payload: []byte("message"), Last: last}); got != queue.Accept {
			t.Errorf("verdict %v, want accept", got)
		}
	}
	if want := []string{"message", "message"}; !slices.Equal(l.seen, want) {
		t.Errorf("saw %q, want %q", l.seen, want)
	}
}

func TestObserveQueueNumber(t *testing.T) {
	observed := func(queue, queues uint16) Config {
		return Config{Queue: queue, Queues: queues, Features: compile.AllFeatures(), Kinds: []*compile.Kind{compile.KindClusterNetworkPolicy}}
	}
	for _, tt := range []struct {
		cfg     Config
		want    uint16
		wantErr string
	}{
		{Config{Queue: 100, Queues: 4}, 0, ""},
		{observed(100, 4), 104, ""},
		{Config{Queue: 65531, Queues: 1}, 0, ""},
		{observed(65531, 1), 65532, ""},
		{observed(65532, 1), 65533, "Queues: the last queue would be 65536, above 65535"},
		{Config{Queue: 65525, Queues: 4, Share: 1}, 0, ""},
		{Config{Queue: 65526, Queues: 4, Share: 1}, 0, "Queues: the last queue would be 65536, above 65535"},
	} {
		t.Run(fmt.Sprintf("queue %d, %d queues, share %d, kinds %v", tt.cfg.Queue, tt.cfg.Queues, tt.cfg.Share, tt.cfg.Kinds), func(t *testing.T) {
			tt.cfg.NodeName, tt.cfg.Manifests = "node", "dir"
			got := ""
			if err := tt.cfg.Validate(); err != nil {
				got = err.Error()
			}
			if got != tt.wantErr || tt.cfg.observeQueue() != tt.want {
				t.Errorf("%+v: queue %d, error %q, want %d and %q", tt.cfg, tt.cfg.observeQueue(), got, tt.want, tt.wantErr)
			}
		})
	}
}
