package enforce

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"sigs.k8s.io/kube-network-policies/pkg/agent/event"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

var (
	isolated = netip.MustParseAddr("10.0.0.1")
	open     = netip.MustParseAddr("10.0.0.2")
	tooNew   = netip.MustParseAddr("10.0.0.9")
)

// snapshot has an isolated pod, which lets TCP port 80 in, and an open one.
func snapshot() *policy.Snapshot {
	chain := &policy.Chain{Rules: []policy.Rule{
		{Action: policy.Allow, Tier: policy.NetworkPolicyTier, Policy: &policy.Ref{Namespace: "x", Name: "web"}, AnyPeer: true, Ports: []policy.Port{{Proto: packet.TCP, First: 80, Last: 80}}},
		{Tier: policy.NetworkPolicyTier, Policy: &policy.Ref{Namespace: "x", Name: "web"}, Index: policy.Isolation, AnyPeer: true, AnyPort: true},
	}, Policies: []*policy.Ref{{Kind: "AdminNetworkPolicy", Name: "guard"}, {Namespace: "x", Name: "web"}, {Namespace: "x", Name: "closed"}}}
	return policy.New(policy.Model{
		Endpoints: policy.NewEndpoints(map[netip.Addr]*policy.Endpoint{
			isolated: {Namespace: "x", Name: "isolated", Ingress: chain},
			open:     {Namespace: "x", Name: "open"},
		}),
		Unknown: policy.Unknown{Ranges: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}, Isolating: [2]bool{policy.Ingress: true}},
	})
}

// tcp is a packet that opens a connection.
func tcp(src, dst netip.Addr, port uint16) []byte {
	const syn = 0x02
	return segment(src, dst, port, syn)
}

// segment is a packet of TCP with flags.
func segment(src, dst netip.Addr, port uint16, flags byte) []byte {
	b := make([]byte, 40)
	b[0], b[9], b[33] = 0x45, byte(packet.TCP), flags
	copy(b[12:], src.AsSlice())
	copy(b[16:], dst.AsSlice())
	binary.BigEndian.PutUint16(b[22:], port)
	return b
}

func TestDecide(t *testing.T) {
	allOpen := Config{FailOpen: true, FailOpenUnknownPacket: true}
	for _, tc := range []struct {
		name     string
		cfg      Config
		snapshot *policy.Snapshot
		payload  []byte
		last     bool
		want     event.Result
		counter  string // of the failure policy
	}{
		{"allowed", Config{}, snapshot(), tcp(open, isolated, 80), false, event.Accept, ""},
		{"denied", Config{}, snapshot(), tcp(open, isolated, 81), false, event.Drop, ""},
		{"denied, whatever fails open", allOpen, snapshot(), tcp(open, isolated, 81), true, event.Drop, ""},
		{"cut TCP header", allOpen, snapshot(), tcp(open, isolated, 80)[:32], false, event.Drop, ""},
		{"no snapshot", Config{}, nil, tcp(open, isolated, 80), false, event.Drop, "no_snapshot/drop"},
		{"no snapshot, open", Config{FailOpen: true}, nil, tcp(open, isolated, 81), false, event.Accept, "no_snapshot/accept"},
		{"empty payload", Config{FailOpen: true}, snapshot(), nil, false, event.Drop, "unparsable/drop"},
		{"random bytes", Config{}, snapshot(), []byte{0xde, 0xad, 0xbe, 0xef}, false, event.Drop, "unparsable/drop"},
		{"random bytes, open", Config{FailOpenUnknownPacket: true}, snapshot(), []byte{0xde, 0xad}, false, event.Accept, "unparsable/accept"},
		{"unknown pod waits", allOpen, snapshot(), tcp(open, tooNew, 80), false, event.ShortWait, ""},
		{"unknown pod has waited", Config{}, snapshot(), tcp(open, tooNew, 80), true, event.Drop, "unknown_pod/drop"},
		{"unknown pod has waited, open", Config{FailOpenUnknownPacket: true}, snapshot(), tcp(open, tooNew, 80), true, event.Accept, "unknown_pod/accept"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			reg := prometheus.NewPedanticRegistry()
			var accepted, want []packet.Packet
			tc.cfg.Taps = append(counting(reg, logr.Discard()), accepting(func(p packet.Packet, _ bool) { accepted = append(accepted, p) }))
			if p, err := packet.Parse(tc.payload); err == nil && tc.want == event.Accept {
				want = append(want, p)
			}
			e := New(tc.cfg)
			e.Swap(tc.snapshot)
			if got := e.Decide(Input{Payload: tc.payload, Last: tc.last}); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
			if !slices.Equal(accepted, want) {
				t.Errorf("reported %v as accepted, want %v", accepted, want)
			}
			if got := counted(t, reg, "netpol_failure_policy_packets_total"); got != tc.counter {
				t.Errorf("counted %q as failure, want %q", got, tc.counter)
			}
			answered := 1
			if tc.want == event.ShortWait {
				answered = 0
			}
			if got := total(t, reg, "packet_count"); got != answered {
				t.Errorf("counted %d packets, want %d", got, answered)
			}
		})
	}
}

// nodeNet is where the node is; no pod has its address.
var nodeNet = netip.MustParsePrefix("192.0.2.0/24")

// guarded returns a snapshot in which an administrator denies a pod its node's network,
// except what the pod knows as "a.test".
func guarded(pod netip.Addr) *policy.Snapshot {
	rule := policy.Rule{Tier: policy.AdminTier, Policy: &policy.Ref{Kind: "AdminNetworkPolicy", Name: "guard"}, AnyPort: true}
	allow, deny := rule, rule
	allow.Action, allow.Peers = policy.Allow, []policy.Peer{{Domains: []policy.Domain{{Name: "a.test"}}}}
	deny.Peers = []policy.Peer{{Blocks: []policy.Block{{Prefix: nodeNet}}}}
	return policy.New(policy.Model{
		Endpoints: policy.NewEndpoints(map[netip.Addr]*policy.Endpoint{pod: {
			Namespace: "x", Name: "guarded", Egress: &policy.Chain{Rules: []policy.Rule{allow, deny, {
				Tier: policy.NetworkPolicyTier, Policy: &policy.Ref{Namespace: "x", Name: "deny"}, Index: policy.Isolation, AnyPeer: true, AnyPort: true,
			}}},
		}}),
	})
}

// known is one name of one address, to every pod.
type known struct {
	addr netip.Addr
	name policy.Names
}

func (k *known) Names(_, addr netip.Addr) *policy.Names {
	if addr != k.addr {
		return nil
	}
	return &k.name
}

// Packets that a domain name would allow if the address were not the node's are counted.
func TestRefusedNamesAreCounted(t *testing.T) {
	node, own := nodeNet.Addr().Next(), nodeNet.Addr().Next().Next()
	for _, tc := range []struct {
		name    string
		knows   policy.Learned
		refused int
	}{
		{"its name", &known{own, policy.Names{"a.test"}}, 1},
		{"another name", &known{own, policy.Names{"b.test"}}, 0},
		{"the name of another address", &known{node, policy.Names{"a.test"}}, 0},
		{"no name", nil, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			reg := prometheus.NewPedanticRegistry()
			e := New(Config{Taps: counting(reg, logr.Discard()), Learned: tc.knows})
			e.Swap(guarded(open))
			if got := e.Decide(Input{Payload: tcp(open, own, 80), ToHost: true}); got != event.Drop {
				t.Errorf("got %v, want Drop", got)
			}
			if got := total(t, reg, "netpol_names_refused_packets_total"); got != tc.refused {
				t.Errorf("counted %v, want %v", got, tc.refused)
			}
		})
	}
}

func TestWhatIsKnownOfAPacketIsAsked(t *testing.T) {
	node, elsewhere := nodeNet.Addr().Next(), netip.MustParseAddr("198.51.100.1")
	for _, tc := range []struct {
		name   string
		dst    netip.Addr
		toHost bool
		knows  policy.Learned
		want   event.Result
	}{
		{"an address that is denied", node, false, nil, event.Drop},
		{"the own node, denied", node, true, nil, event.Drop},
		{"the own node, not denied by administrators", elsewhere, true, nil, event.Accept},
		{"isolated", elsewhere, false, nil, event.Drop},
		{"by its name", node, false, &known{node, policy.Names{"a.test"}}, event.Accept},
		{"the own node by its name", node, true, &known{node, policy.Names{"a.test"}}, event.Drop},
		{"by another name", node, true, &known{node, policy.Names{"b.test"}}, event.Drop},
		{"another's name", node, true, &known{elsewhere, policy.Names{"a.test"}}, event.Drop},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := New(Config{Taps: counting(prometheus.NewRegistry(), logr.Discard()), Learned: tc.knows})
			e.Swap(guarded(open))
			in := Input{Payload: tcp(open, tc.dst, 80), ToHost: tc.toHost}
			if got := e.Decide(in); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
			if n := testing.AllocsPerRun(100, func() { e.Decide(in) }); n != 0 {
				t.Errorf("%v allocations, want 0", n)
			}
		})
	}
}

// counted returns the labels of the one counter of the family that is not zero.
func counted(t *testing.T, reg prometheus.Gatherer, name string) string {
	t.Helper()
	var out []string
	for _, mf := range gather(t, reg) {
		for _, m := range mf.GetMetric() {
			if mf.GetName() != name || m.GetCounter().GetValue() == 0 {
				continue
			}
			var values []string
			for _, l := range m.GetLabel() {
				values = append(values, l.GetValue())
			}
			out = append(out, strings.Join(values, "/"))
		}
	}
	return strings.Join(out, " ")
}

func total(t *testing.T, reg prometheus.Gatherer, name string) int {
	t.Helper()
	sum := 0.0
	for _, mf := range gather(t, reg) {
		for _, m := range mf.GetMetric() {
			if mf.GetName() == name {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return int(sum)
}

func gather(t *testing.T, reg prometheus.Gatherer) []*dto.MetricFamily {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return families
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	e := New(Config{Taps: counting(reg, logr.Discard())})
	e.Swap(snapshot())
	e.Decide(Input{Payload: tcp(open, isolated, 80)})
	e.Decide(Input{Payload: tcp(open, isolated, 81)})
	e.Decide(Input{Payload: tcp(isolated, open, 81)})
	e.Decide(Input{Payload: tcp(open, isolated, 80)[:30]})
	e.Decide(Input{Payload: []byte{1}})
	if got, want := counted(t, reg, "packet_count"), "IPv4/TCP/accept IPv4/TCP/drop IPv4/hidden/drop unknown/other/drop"; got != want {
		t.Errorf("packet_count of %q, want %q", got, want)
	}
	if got, want := counted(t, reg, "netpol_decisions_total"), "egress/default/allow ingress/networkpolicy/allow ingress/networkpolicy/deny"; got != want {
		t.Errorf("netpol_decisions_total of %q, want %q", got, want)
	}
	problems, err := testutil.GatherAndLint(reg, "netpol_decisions_total", "netpol_failure_policy_packets_total", "netpol_late_packets_total", "netpol_names_refused_packets_total", "netpol_disputed_packets_total")
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
}

// The ICMP of one family in a packet of the other one has no series of its own.
func TestImpossiblePairsHaveNoSeries(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	e := New(Config{Taps: counting(reg, logr.Discard())})
	e.Swap(snapshot())
	const pairs = 13 // four protocols, hidden ones among them, and other in two families, two of ICMP, unknown
	series := map[string]int{"packet_process_time": pairs, "packet_process_duration_microseconds": pairs, "packet_count": 2 * pairs,
		"netpol_decisions_total": 14, "netpol_failure_policy_packets_total": 7,
		"netpol_audit_undecided_packets_total": 1, "netpol_late_packets_total": 14, "netpol_names_refused_packets_total": 1, "netpol_disputed_packets_total": 2}
	for _, family := range gather(t, reg) {
		if got, want := len(family.Metric), series[family.GetName()]; got != want {
			t.Errorf("%s has %d series, want %d", family.GetName(), got, want)
		}
	}
	strange := tcp(open, isolated, 0)
	strange[9] = byte(packet.ICMPv6)
	e.Decide(Input{Payload: strange})
	if got, want := counted(t, reg, "packet_count"), "IPv4/other/drop"; got != want {
		t.Errorf("packet_count of %q, want %q", got, want)
	}
}

func TestDecideDoesNotAllocate(t *testing.T) {
	e, _, _ := recording(t)
	late := segment(open, isolated, 81, 0x10)
	for _, payload := range [][]byte{tcp(open, isolated, 80), tcp(open, isolated, 81), tcp(open, tooNew, 80), late, {0xff}} {
		// The summary sorts its samples now and then; that is not per packet.
		if n := testing.AllocsPerRun(1000, func() { e.Decide(Input{Payload: payload, Last: true}) }); n != 0 {
			t.Errorf("%v allocations for %x, want 0", n, payload)
		}
	}
}

// Whoever sends what cannot be parsed chooses how often.
func TestUnparsablePacketsAreLoggedEveryTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines []string
		logger := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
		e := New(Config{Taps: counting(prometheus.NewRegistry(), logger)})
		e.Swap(snapshot())
		for want := range 2 {
			for range 100 {
				e.Decide(Input{Payload: tcp(open, isolated, 81)}) // denied
				e.Decide(Input{Payload: []byte{0xff}})
			}
			if len(lines) != want+1 || !strings.Contains(lines[want], `"msg"="Packet cannot be parsed" "reason"=`) {
				t.Fatalf("logged %q, want %d lines", lines, want+1)
			}
			time.Sleep(10 * time.Second)
		}
	})
}

func BenchmarkDecide(b *testing.B) {
	e := New(Config{Taps: counting(prometheus.NewRegistry(), logr.Discard())})
	e.Swap(snapshot())
	for name, payload := range map[string][]byte{"allow": tcp(open, isolated, 80), "deny": tcp(open, isolated, 81)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				e.Decide(Input{Payload: payload})
			}
		})
	}
}

func TestPacketsOfUnknownAddressesWait(t *testing.T) {
	var wanted []netip.Addr
	e := New(Config{Taps: wanting(&wanted)})
	e.Swap(snapshot())
	outside := netip.MustParseAddr("198.51.100.1")
	for _, tc := range []struct {
		unknown []netip.Addr
		last    bool
		want    event.Result
	}{
		{[]netip.Addr{open}, false, event.ShortWait},
		{[]netip.Addr{outside}, false, event.ShortWait},
		{[]netip.Addr{open, outside}, true, event.Drop},
		{[]netip.Addr{tooNew}, false, event.Accept},
		{nil, false, event.Accept},
	} {
		t.Run(fmt.Sprintf("while %v are unknown, last %v", tc.unknown, tc.last), func(t *testing.T) {
			unknown := make(map[netip.Addr]struct{})
			for _, a := range tc.unknown {
				unknown[a] = struct{}{}
			}
			e.SetUnknown(unknown)
			wanted = nil
			if got := e.Decide(Input{Payload: tcp(open, outside, 80), Last: tc.last}); got != tc.want {
				t.Errorf("while %v are unknown, last %v: %v, want %v", tc.unknown, tc.last, got, tc.want)
			}
			if asked := slices.Equal(wanted, []netip.Addr{outside}); asked != (tc.want == event.ShortWait) {
				t.Errorf("%v are asked for", wanted)
			}
		})
	}
}

// Only the endpoints of a connection may report errors about it.
func TestOwnErrors(t *testing.T) {
	e := New(Config{})
	e.Swap(snapshot())
	other := netip.MustParseAddr("10.0.0.3")
	unreachable := func(src, dst, from, to netip.Addr) []byte {
		b := append(tcp(src, dst, 0)[:20], 3, 3, 0, 0, 0, 0, 0, 0)
		b[9] = byte(packet.ICMP)
		return append(b, tcp(from, to, 80)...)
	}
	for _, tt := range []struct {
		name    string
		payload []byte
		marked  bool
		want    event.Result
	}{
		{"about its own connection", unreachable(open, isolated, isolated, open), true, event.Accept},
		{"about another pod's", unreachable(open, isolated, isolated, other), true, event.Drop},
		{"about what it has sent itself", unreachable(open, isolated, open, isolated), true, event.Drop},
		{"about no connection", unreachable(open, isolated, isolated, open), false, event.Drop},
		{"no error", tcp(open, isolated, 81), true, event.Drop},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := e.Decide(Input{Payload: tt.payload, Marked: tt.marked}); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
