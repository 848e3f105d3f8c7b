package agent

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2/ktesting"

	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/queue"
)

// observing returns an Observe of a module whose servers are those that servers returns.
func observing(servers func() []netip.AddrPort) *module.Observe {
	return &module.Observe{Between: func(s *policy.Snapshot) ([]netip.Addr, []netip.AddrPort) { return s.SelectedForNames(), servers() }}
}

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

// setsOf lists the addresses to steer.
func setsOf(s *steering) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var lines []string
	for field, value := range reflect.ValueOf(s.desired).Fields() {
		if value.Kind() == reflect.Slice && value.Len() > 0 {
			lines = append(lines, fmt.Sprint(field.Name, " ", value))
		}
	}
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

func TestObservedPacketsAreSteered(t *testing.T) {
	pod, server := netip.MustParseAddr("10.244.1.2"), netip.MustParseAddrPort("10.96.0.10:53")
	for _, tt := range []struct {
		observe *module.Observe
		want    string
	}{
		{observing(func() []netip.AddrPort { return []netip.AddrPort{server} }), "Egress [10.244.1.2]\nToHost [10.244.1.2]\nPods [10.244.1.2]\nObserved [10.244.1.2]\nServers [10.96.0.10:53]\nOwners [{10.244.1.2 0}]"},
		{nil, "Egress [10.244.1.2]\nToHost [10.244.1.2]\nPods [10.244.1.2]\nOwners [{10.244.1.2 0}]"},
	} {
		t.Run(fmt.Sprintf("observed %v", tt.observe != nil), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				reg := prometheus.NewRegistry()
				a := newTestAgent(t, reg)
				a.steering.observe = tt.observe
				_, ctx := ktesting.NewTestContext(t)

				a.publish(ctx, administered(pod), time.Now().Add(-3*time.Second), true)

				if got := latencies(t, reg); got != 3 {
					t.Errorf("latency %v s, want 3", got)
				}
				if got := setsOf(a.steering); got != tt.want {
					t.Errorf("the sets hold\n%s\nwant\n%s", got, tt.want)
				}
			})
		})
	}
}

func TestChangedServersAreSteered(t *testing.T) {
	pod := netip.MustParseAddr("10.244.1.2")
	var servers []netip.AddrPort
	a := newTestAgent(t, prometheus.NewRegistry())
	a.steering.observe = observing(func() []netip.AddrPort { return servers })
	_, ctx := ktesting.NewTestContext(t)
	find := func(found ...string) {
		servers = nil
		for _, r := range found {
			servers = append(servers, netip.MustParseAddrPort(r))
		}
		a.steering.resteer()
	}
	expect := func(want string) {
		t.Helper()
		if got := setsOf(a.steering); got != want {
			t.Errorf("the sets hold\n%s\nwant\n%s", got, want)
		}
	}
	const owners = "\nOwners [{10.244.1.2 0}]"
	const selected = "Egress [10.244.1.2]\nToHost [10.244.1.2]\nPods [10.244.1.2]\nObserved [10.244.1.2]"
	find("192.0.2.53:53")
	if s, _ := a.steering.latest(); s != nil {
		t.Error("something is steered before the first snapshot")
	}
	a.publish(ctx, administered(pod), time.Now(), true)
	expect(selected + "\nServers [192.0.2.53:53]" + owners)
	find("10.96.0.10:53", "192.0.2.53:53")
	expect(selected + "\nServers [10.96.0.10:53 192.0.2.53:53]" + owners)
	find()
	expect(selected + owners)
}

// TestANodeIsClosedForWhatIsKnown: without sandboxes nothing is closed, and the saved state does
// not wait for an empty table.
func TestANodeIsClosedForWhatIsKnown(t *testing.T) {
	s := &steering{steerer: newIdleSteerer(t, prometheus.NewRegistry()), boot: boot{closed: true}}

	s.closeSandboxes(nil)
	s.closeRanges(nil)

	if got := setsOf(s); got != "" {
		t.Errorf("%s is closed although no address is known", got)
	}

	s.closeSandboxes([]netip.Addr{netip.MustParseAddr("10.244.1.2")})

	if got, want := setsOf(s), "Ingress [10.244.1.2]\nEgress [10.244.1.2]"; got != want {
		t.Errorf("the sets hold\n%s\nwant\n%s", got, want)
	}
}

// TestIncompleteManifestsCloseTheNode: for the pods and ranges of this node in valid files, and for those
// that an earlier agent knew, unless that agent runs or the agent fails open.
func TestIncompleteManifestsCloseTheNode(t *testing.T) {
	recorded := []netip.Addr{netip.MustParseAddr("10.244.1.9")}
	for _, tt := range []struct {
		name string
		boot boot
		want string
	}{
		{"a boot", boot{closable: true, closed: true}, "Ingress [10.244.1.2 fd00::2]\nEgress [10.244.1.2 fd00::2]\nIngressRanges [10.244.1.0/24]\nEgressRanges [10.244.1.0/24]"},
		{"a restart", boot{closable: true, recorded: recorded}, "Ingress [10.244.1.9 10.244.1.2 fd00::2]\nEgress [10.244.1.9 10.244.1.2 fd00::2]\nIngressRanges [10.244.1.0/24]\nEgressRanges [10.244.1.0/24]"},
		{"beside another agent", boot{recorded: recorded}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &steering{steerer: newIdleSteerer(t, prometheus.NewRegistry()), boot: tt.boot}
			s.closeIncomplete([]netip.Addr{netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("fd00::2")}, []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")})
			if got := setsOf(s); got != tt.want {
				t.Errorf("the sets hold\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

func TestObservedPacketsAreAccepted(t *testing.T) {
	var seen []string
	o := &module.Observe{Packet: func(payload []byte) { seen = append(seen, string(payload)) }}
	for _, last := range []bool{false, true} {
		if got := observe(o)(queue.Packet{Payload: []byte("message"), Last: last}); got != queue.Accept {
			t.Errorf("verdict %v, want accept", got)
		}
	}
	if want := []string{"message", "message"}; !slices.Equal(seen, want) {
		t.Errorf("saw %q, want %q", seen, want)
	}
}

func TestQueueNumbers(t *testing.T) {
	for _, tt := range []struct {
		cfg         Config
		observe     *module.Observe
		wantObserve uint16
		wantErr     string
	}{
		{Config{Queue: 100}, nil, 0, ""},
		{Config{Queue: 100}, &module.Observe{}, 104, ""},
		{Config{Queue: 65525}, nil, 0, ""},
		{Config{Queue: 65526}, nil, 0, "Queue 65526 is above 65525"},
	} {
		t.Run(fmt.Sprintf("queue %d, observing %v", tt.cfg.Queue, tt.observe != nil), func(t *testing.T) {
			tt.cfg.NodeName, tt.cfg.queues = "node", maxQueues
			got := ""
			if err := tt.cfg.Validate(); err != nil {
				got = err.Error()
			}
			if got != tt.wantErr || tt.cfg.observeQueue(tt.observe) != tt.wantObserve {
				t.Errorf("%+v: queue %d, error %q, want %d and %q", tt.cfg, tt.cfg.observeQueue(tt.observe), got, tt.wantObserve, tt.wantErr)
			}
			if last := tt.cfg.numbers().Last(); (last <= 0xffff) != (got == "") {
				t.Errorf("the last queue is %d, error %q", last, got)
			}
		})
	}
}
