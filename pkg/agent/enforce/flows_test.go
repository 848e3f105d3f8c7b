package enforce

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/agent/event"
	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// recording returns an enforcer with a flow recorder, and one without.
func recording(tb testing.TB) (with, without *Enforcer, r *flows.Recorder) {
	r = flows.New(flows.Config{Node: "node-1", Registerer: prometheus.NewRegistry()})
	with = New(Config{Taps: append(counting(prometheus.NewRegistry(), logr.Discard()), r.Tap)})
	without = New(Config{Taps: counting(prometheus.NewRegistry(), logr.Discard())})
	s := snapshot()
	with.Swap(s)
	without.Swap(s)
	return with, without, r
}

// Each decided packet is in a flow with its verdict; undecided packets are in none.
func TestDecisionsAreInFlows(t *testing.T) {
	for _, tc := range []struct {
		name    string
		open    bool
		decide  func(*Enforcer)
		verdict string // and the number of packets
	}{
		{"allowed", false, func(e *Enforcer) { e.Decide(Input{Payload: tcp(open, isolated, 80)}) }, "allow rule matched 1"},
		{"denied", false, func(e *Enforcer) { e.Decide(Input{Payload: tcp(open, isolated, 81)}) }, "deny isolated 1"},
		{"not decided yet", false, func(e *Enforcer) { e.Decide(Input{Payload: tcp(open, tooNew, 80)}) }, ""},
		{"an unknown pod", false, func(e *Enforcer) { e.Decide(Input{Payload: tcp(open, tooNew, 80), Last: true}) }, "deny unknown pod 1"},
		{"an unknown pod, fail open", true, func(e *Enforcer) { e.Decide(Input{Payload: tcp(open, tooNew, 80), Last: true}) }, "allow unknown pod 1"},
		{"no packet", false, func(e *Enforcer) { e.Decide(Input{Payload: []byte{1}, Last: true}) }, ""},
		{"decided by the kernel", false, func(e *Enforcer) {
			c := packet.Class{Src: open, Dst: isolated, Proto: packet.TCP, Port: 81}
			e.ReportClass(c, policy.Decision{Direction: policy.Ingress, Tier: policy.NetworkPolicyTier, Reason: policy.Isolated}, 7)
		}, "deny isolated 7"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e, _, r := recording(t)
			e.cfg.FailOpenUnknownPacket = tc.open
			tc.decide(e)
			got := ""
			for _, rec := range r.Read(flows.Filter{}) {
				if rec.Type == flows.TypeFlow {
					got += fmt.Sprintf("%s %s %d", rec.Verdict, rec.Reason, rec.Count)
				}
			}
			if got != tc.verdict {
				t.Errorf("the flow is %q, want %q", got, tc.verdict)
			}
		})
	}
}

// Verdicts that audited policies would change are in the flow, and only there.
func TestAuditedDecisionsAreInFlows(t *testing.T) {
	e, _, r := recording(t)
	e.Swap(auditing())
	for _, to := range []netip.Addr{audited, open} {
		if got := e.Decide(Input{Payload: tcp(tooNew, to, 80), Last: true}); got != event.Accept {
			t.Fatalf("to %v: got %d, want it accepted", to, got)
		}
	}
	got := map[string]string{}
	for _, rec := range r.Read(flows.Filter{})[1:] {
		if rec.Audit != nil {
			got[rec.Destination.Pod] = rec.Verdict + ", " + rec.Audit.Verdict + " by " + rec.Audit.Policy.Name
		} else {
			got[rec.Destination.Pod] = rec.Verdict
		}
	}
	if diff := cmp.Diff(map[string]string{"audited": "allow, deny by closed", "open": "allow"}, got); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
}

// A hostile client makes a million classes: each packet gets its verdict, memory is bounded, and
// decisions in no flow are counted. Rules count all decisions that the buffer had room for.
func TestAMillionClasses(t *testing.T) {
	const classes, mostBytes = 1_000_000, 6 << 20
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	r := flows.New(flows.Config{Node: "node-1", Registerer: prometheus.NewPedanticRegistry()})
	e := New(Config{Taps: []event.Tap{r.Tap}})
	e.Swap(snapshot())
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = r.Run(ctx) })
	random := rand.New(rand.NewPCG(5, 6))
	for range classes {
		from := netip.AddrFrom4([4]byte{172, byte(random.Uint32()), byte(random.Uint32()), byte(random.Uint32())})
		port, want := uint16(random.Uint32()), event.Drop
		if random.IntN(2) == 0 {
			port = 80
		}
		if port == 80 {
			want = event.Accept
		}
		if got := e.Decide(Input{Payload: tcp(from, isolated, port)}); got != want {
			t.Fatalf("from %v to port %d: got %d, want %d", from, port, got, want)
		}
	}
	stop()
	running.Wait()
	s := r.Read(flows.Filter{})[0].Summary
	if s.Lost == 0 {
		t.Error("no decision is lost")
	}
	counted := uint64(0)
	for _, rec := range r.Read(flows.Filter{Rules: true}) {
		counted += rec.Count
		if rec.Type == flows.TypeAgent {
			counted += rec.Lost
		}
	}
	if counted != classes {
		t.Errorf("%d decisions count for a rule or as lost, of %d", counted, classes)
	}
	if grown := heap() - before; grown > mostBytes {
		t.Errorf("memory has grown by %d bytes, more than %d", grown, mostBytes)
	} else {
		t.Logf("%d flows, %d evicted, %d decisions lost, %d bytes", s.Flows, s.Evicted, s.Lost, grown)
	}
	runtime.KeepAlive(e)
}
