package enforce

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/agent/event"
	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

var audited = netip.MustParseAddr("10.0.0.3")

// auditing returns a snapshot with a pod that an audited NetworkPolicy would isolate, and a
// pod whose audited AdminNetworkPolicy names domains.
func auditing() *policy.Snapshot {
	ref := &policy.Ref{Kind: "NetworkPolicy", Namespace: "x", Name: "closed"}
	chain := &policy.Chain{
		Rules:    []policy.Rule{{Tier: policy.NetworkPolicyTier, Policy: ref, Index: policy.Isolation, AnyPeer: true, AnyPort: true}},
		Policies: []*policy.Ref{ref},
	}
	names := &policy.Chain{Rules: []policy.Rule{
		{Action: policy.Allow, Tier: policy.AdminTier, Policy: &policy.Ref{Kind: "AdminNetworkPolicy", Name: "names"}, AnyPort: true, Peers: []policy.Peer{{Domains: []policy.Domain{{Name: "a.test"}}}}},
	}}
	pod := policy.Endpoint{Namespace: "x", Name: "audited"}
	would := pod
	would.Ingress, would.Egress = chain, names
	pod.Audited = &would
	return policy.New(policy.Model{
		Endpoints: policy.NewEndpoints(map[netip.Addr]*policy.Endpoint{audited: &pod, open: {Namespace: "x", Name: "open"}}),
		Audit:     &policy.Audit{Isolating: [2]bool{policy.Ingress: true}},
	})
}

// newLog returns a logger and its lines.
func newLog() (*[]string, logr.Logger) {
	lines := new([]string)
	return lines, funcr.New(func(_, line string) { *lines = append(*lines, line) }, funcr.Options{})
}

const auditedDenial = "ingress/NetworkPolicy/x/closed/none/deny" // labels in the order of their names

func TestAuditedPoliciesAreCountedAndNotEnforced(t *testing.T) {
	for _, decide := range []struct {
		name string
		by   func(*Enforcer, Input) event.Result
	}{{"the queue of decisions", (*Enforcer).Decide}, {"the audit queue", (*Enforcer).Audit}} {
		t.Run(decide.name, func(t *testing.T) {
			reg, verdicts := prometheus.NewPedanticRegistry(), &classRecorder{}
			log, logger := newLog()
			recorder := flows.New(flows.Config{Registerer: reg, Logger: logger})
			e := New(Config{AcceptClass: verdicts.remember, Taps: []event.Tap{verdicts.tap, recorder.Tap}})
			e.Swap(auditing())
			for range 3 {
				if got := decide.by(e, Input{Payload: tcp(open, audited, 80)}); got != event.Accept {
					t.Errorf("got %d, want it accepted", got)
				}
			}
			recorder.Read(flows.Filter{}) // logs
			if got := total(t, reg, "netpol_audit_packets_total"); got != 3 {
				t.Errorf("%d packets counted, want 3", got)
			}
			if got := counted(t, reg, "netpol_audit_packets_total"); got != auditedDenial {
				t.Errorf("counted as %q, want %q", got, auditedDenial)
			}
			want := `"msg"="Packet would be denied by audited policies" "protocol"="TCP" "src"="10.0.0.2:0" "srcPod"="x/open" "dst"="10.0.0.3:80" "dstPod"="x/audited" ` +
				`"direction"="ingress" "tier"="networkpolicy" "reason"="isolated" "policies"=["x/closed"]`
			if got := *log; len(got) != 1 || !strings.Contains(got[0], want) {
				t.Errorf("logged %q, want %s", got, want)
			}
			if len(verdicts.classes) > 0 {
				t.Errorf("%v are remembered, and would not be counted any more", verdicts.classes)
			}
		})
	}
}

// classRecorder records the classes that may be remembered.
type classRecorder struct{ classes []packet.Class }

func (r *classRecorder) remember(ev *event.Event) bool {
	r.classes = append(r.classes, ev.Class)
	return true
}

func (r *classRecorder) tap(ev *event.Event) {
	if ev.Lasting && !ev.Decision.Allowed() {
		r.classes = append(r.classes, ev.Class)
	}
}

// TestAuditQueueFailsOpen: packets that cannot be decided pass under every failure policy.
func TestAuditQueueFailsOpen(t *testing.T) {
	for _, tc := range []struct {
		name     string
		snapshot *policy.Snapshot
		payload  []byte
		unknown  bool
	}{
		{"no snapshot", nil, tcp(open, audited, 80), false},
		{"unparsable", auditing(), []byte{0xde, 0xad}, false},
		{"a stale address", auditing(), tcp(open, audited, 80), true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := New(Config{Taps: counting(prometheus.NewRegistry(), logr.Discard())})
			e.Swap(tc.snapshot)
			if tc.unknown {
				e.SetUnknown(map[netip.Addr]struct{}{audited: {}})
			}
			if got := e.Audit(Input{Payload: tc.payload}); got != event.Accept {
				t.Errorf("got %d, want it accepted", got)
			}
			if got := e.Decide(Input{Payload: tc.payload, Last: true}); got != event.Drop {
				t.Errorf("in the other queues: got %d, want it dropped", got)
			}
		})
	}
}

// TestAuditQueueEnforces: a policy that was audited when the packet was queued may be
// enforced when it is decided.
func TestAuditQueueEnforces(t *testing.T) {
	e := New(Config{Taps: counting(prometheus.NewRegistry(), logr.Discard())})
	e.Swap(snapshot())
	if got := e.Audit(Input{Payload: tcp(open, isolated, 81)}); got != event.Drop {
		t.Errorf("got %d, want it dropped", got)
	}
}

// faulty panics whenever it is asked.
type faulty struct{}

func (faulty) Names(netip.Addr, netip.Addr) *policy.Names { panic("a fault") }

// TestFaultsOfAuditsCostNoPacket: a panic while audited policies are evaluated does not
// change the verdict.
func TestFaultsOfAuditsCostNoPacket(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	e := New(Config{Taps: counting(reg, logr.Discard()), Learned: faulty{}})
	e.Swap(auditing())
	if got := e.Decide(Input{Payload: tcp(audited, open, 80)}); got != event.Accept {
		t.Errorf("got %d, want it accepted", got)
	}
	if got := total(t, reg, "netpol_audit_undecided_packets_total"); got != 1 {
		t.Errorf("%d packets undecided, want 1", got)
	}
}
