package enforce

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/pkg/agent/event"
	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

func TestNewcomersAreBounded(t *testing.T) {
	// Neighbours are in different networks.
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(i), byte(i >> 8), byte(i >> 16)}) }
	from := func(addr netip.Addr) packet.Packet {
		return packet.Packet{Src: netip.AddrPortFrom(addr, 5000), Proto: packet.UDP}
	}
	at := func(d time.Duration) time.Time { return time.Unix(1000, 0).Add(d) }
	count := func(n *newcomers, i int, now time.Time, packets int) (waiting int) {
		for range packets {
			if n.admit(from(addr(i)), now) == admitted {
				waiting++
			}
		}
		return waiting
	}
	t.Run("packets of one address", func(t *testing.T) {
		n := newNewcomers()
		if got := count(n, 1, at(0), 100); got != newcomerPackets {
			t.Errorf("%d packets wait, want %d", got, newcomerPackets)
		}
		if got := count(n, 2, at(0), 1); got != 1 {
			t.Error("another address does not wait")
		}
	})
	t.Run("an address that stays unknown", func(t *testing.T) {
		n := newNewcomers()
		for _, c := range []struct {
			after time.Duration
			want  int
		}{{0, 1}, {newcomerWindow - 1, 1}, {newcomerWindow, 0}, {newcomerRest - 1, 0}, {newcomerRest, 1}, {newcomerRest + newcomerWindow, 0}} {
			if got := count(n, 1, at(c.after), 1); got != c.want {
				t.Errorf("after %v %d packets wait, want %d", c.after, got, c.want)
			}
		}
	})
	t.Run("all addresses together", func(t *testing.T) {
		n := newNewcomers()
		// Whatever has begun to wait in the four seconds before fits into a queue.
		waiting := map[int]int{}
		for second := range 20 {
			for i := range 300 {
				waiting[second] += count(n, 300*second+i, at(time.Duration(second)*time.Second+500*time.Millisecond), 1)
			}
			last := 0
			for i := range 4 {
				last += waiting[second-i]
			}
			if last > newcomerRoom {
				t.Errorf("%d packets wait after %d seconds", last, second)
			}
		}
		if sum := waiting[15] + waiting[16] + waiting[17] + waiting[18] + waiting[19]; sum != newcomerRoom {
			t.Errorf("%d packets begin to wait in five seconds, want %d", sum, newcomerRoom)
		}
		n = newNewcomers()
		got := 0
		for i := range 2 * newcomerRoom {
			got += count(n, i, at(0), 1)
		}
		if got != newcomerRoom {
			t.Errorf("%d packets wait at once, want %d", got, newcomerRoom)
		}
		if got := count(n, 1_000_000, at(4*time.Second), 1); got != 0 {
			t.Error("a packet waits before others are decided")
		}
		if got := count(n, 1_000_000, at(5*time.Second), 1); got != 1 {
			t.Error("five seconds later no packet waits")
		}
		if n.recent.packets != 1 || len(n.recent.byNetwork) != 1 {
			t.Errorf("%d packets of %d networks are counted", n.recent.packets, len(n.recent.byNetwork))
		}
	})
	t.Run("addresses of one network", func(t *testing.T) {
		n := newNewcomers()
		waiting := 0
		for i := range 2 * newcomerNetworkRoom {
			if n.admit(from(netip.AddrFrom16([16]byte{0xfd, 14: byte(i >> 8), 15: byte(i)})), at(0)) == admitted {
				waiting++
			}
		}
		if waiting != newcomerNetworkRoom {
			t.Errorf("%d packets wait, want %d", waiting, newcomerNetworkRoom)
		}
		if n.admit(from(netip.MustParseAddr("fd00:0:0:1::1")), at(0)) != admitted {
			t.Error("an address of another network does not wait")
		}
		if n.admit(from(netip.MustParseAddr("fd00::ffff:1")), at(5*time.Second)) != admitted {
			t.Error("five seconds later an address of that network does not wait")
		}
	})
	t.Run("connections that are opened again and again", func(t *testing.T) {
		n := newNewcomers()
		for i := range newcomerPackets {
			p := packet.Packet{Src: netip.AddrPortFrom(addr(1), uint16(i)), Proto: packet.TCP}
			for _, c := range []struct {
				after time.Duration
				want  admission
			}{{0, admitted}, {0, repeated}, {time.Second, repeated}, {newcomerRepeats - 1, repeated}} {
				if got := n.admit(p, at(c.after)); got != c.want {
					t.Errorf("connection %d after %v: %d, want %d", i, c.after, got, c.want)
				}
			}
		}
		tcp := func(i int, port uint16) packet.Packet {
			return packet.Packet{Src: netip.AddrPortFrom(addr(i), port), Proto: packet.TCP}
		}
		for _, c := range []struct {
			name  string
			p     packet.Packet
			after time.Duration
			want  admission
		}{
			{"one connection too many", tcp(1, newcomerPackets), 2 * time.Second, refused},
			{"the second repetition, while the first packet waits", tcp(1, 0), 3 * time.Second, admitted},
			{"one connection too many after it", tcp(1, newcomerPackets), 3 * time.Second, refused},
			{"the same at the end of the first packet's time", tcp(1, 1), bounds.LongWait - 1, admitted},
			{"a repetition after the first packet was decided", tcp(1, 2), bounds.LongWait, refused},
			{"a repetition of the second one, in the address's rest", tcp(1, 0), 6 * time.Second, repeated},
			{"its last repetition", tcp(1, 0), 7 * time.Second, refused},
			{"a connection of another address", tcp(2, 0), 9 * time.Second, admitted},
		} {
			if got := n.admit(c.p, at(c.after)); got != c.want {
				t.Errorf("%s: %d, want %d", c.name, got, c.want)
			}
		}
		if got := n.windows[addr(1)].packets; got != newcomerPackets {
			t.Errorf("an address has %d packets with repetitions, want %d", got, newcomerPackets)
		}
		if len(n.opening) > 1 {
			t.Errorf("%d connections are remembered", len(n.opening))
		}
	})
	t.Run("an address that another pod gets", func(t *testing.T) {
		n := newNewcomers()
		count(n, 1, at(0), newcomerPackets)
		count(n, 2, at(0), newcomerPackets)
		n.known(addr(1))
		n.known(addr(3))
		if got := count(n, 1, at(10*time.Second), 1); got != 1 {
			t.Error("the pod that has the address later does not wait")
		}
		if got := count(n, 2, at(10*time.Second), 1); got != 0 {
			t.Error("an address that stayed unknown waits again")
		}
		if len(n.windows) != 2 || len(n.order) != 2 {
			t.Errorf("%d addresses, %d in order, want 2", len(n.windows), len(n.order))
		}
	})
	t.Run("what is remembered", func(t *testing.T) {
		n := newNewcomers()
		for i := range 5 * newcomerAddresses {
			n.admit(from(addr(i)), at(time.Duration(i)*10*time.Millisecond))
		}
		if len(n.windows) != newcomerAddresses || len(n.order) != newcomerAddresses {
			t.Errorf("%d addresses, %d in order, want %d", len(n.windows), len(n.order), newcomerAddresses)
		}
	})
}

// TestSourcesOfNewPodsWait: NP-61.
func TestSourcesOfNewPodsWait(t *testing.T) { synctest.Test(t, testSourcesOfNewPodsWait) }

func testSourcesOfNewPodsWait(t *testing.T) {
	web := labels.SelectorFromSet(labels.Set{"app": "web"})
	ref := &policy.Ref{Namespace: "x", Name: "web"}
	chain := &policy.Chain{Rules: []policy.Rule{
		{Action: policy.Allow, Tier: policy.NetworkPolicyTier, Policy: ref, AnyPort: true, Peers: []policy.Peer{{Pods: &policy.PodSelector{Namespace: "x", Pods: web}}}},
		{Tier: policy.NetworkPolicyTier, Policy: ref, Index: policy.Isolation, AnyPeer: true, AnyPort: true},
	}}
	var wanted []netip.Addr
	e := New(Config{Taps: wanting(&wanted)})
	e.Swap(policy.New(policy.Model{
		Endpoints: policy.NewEndpoints(map[netip.Addr]*policy.Endpoint{isolated: {Namespace: "x", Name: "isolated", Ingress: chain}}),
		Unknown:   policy.Unknown{Newcomers: []*policy.Endpoint{{Namespace: "x", Name: "new", Labels: policy.NewLabels(labels.Set{"app": "web"})}}},
	}))
	from := netip.MustParseAddr("10.0.1.9")
	in := Input{Payload: tcp(from, isolated, 80)}
	for port := range uint16(newcomerPackets) {
		in.Payload = tcp(from, isolated, 80+port)
		if got := e.Decide(in); got != event.LongWait {
			t.Errorf("a packet: %d, want it to wait", got)
		}
		if got := e.Decide(in); got != event.Drop {
			t.Errorf("a packet that the client repeats: %d, want it dropped", got)
		}
	}
	in.Payload = tcp(from, isolated, 8080)
	if got := e.Decide(in); got != event.Drop {
		t.Errorf("one packet too many: %d, want it denied", got)
	}
	in.Payload, in.Pending = tcp(from, isolated, 80), true
	if got := e.Decide(in); got != event.LongWait {
		t.Errorf("a packet that waits already: %d, want it to wait", got)
	}
	in.Last = true
	if got := e.Decide(in); got != event.Drop {
		t.Errorf("one that has waited: %d, want it denied", got)
	}
	if !slices.Equal(wanted, slices.Repeat([]netip.Addr{from}, newcomerPackets)) {
		t.Errorf("%v are asked for, want %v once for each packet that begins to wait", wanted, from)
	}
	// An address has no window once its pod is known.
	e.Swap(policy.New(policy.Model{Endpoints: policy.NewEndpoints(map[netip.Addr]*policy.Endpoint{
		isolated: {Namespace: "x", Name: "isolated", Ingress: chain},
		from:     {Namespace: "x", Name: "new", Labels: policy.NewLabels(labels.Set{"app": "web"})},
	})}))
	in.Last = false
	if got := e.Decide(in); got != event.Accept {
		t.Errorf("one whose pod is known: %d, want it accepted", got)
	}
	if n := len(e.sources.windows); n != 0 {
		t.Errorf("%d addresses have a window", n)
	}
}

// TestLatePacketsWaitForEitherEnd: the receiver of a late packet may have opened the connection,
// and may be a new pod.
func TestLatePacketsWaitForEitherEnd(t *testing.T) {
	chain := &policy.Chain{Rules: []policy.Rule{
		{Action: policy.Allow, Tier: policy.NetworkPolicyTier, Policy: &policy.Ref{Namespace: "x", Name: "web"}, AnyPort: true,
			Peers: []policy.Peer{{Pods: &policy.PodSelector{Namespace: "x", Pods: labels.Everything()}}}},
		{Tier: policy.NetworkPolicyTier, Policy: &policy.Ref{Namespace: "x", Name: "web"}, Index: policy.Isolation, AnyPeer: true, AnyPort: true},
	}}
	peer, newPod := netip.MustParseAddr("10.0.1.9"), &policy.Endpoint{Namespace: "x", Name: "new"}
	for name, payload := range map[string][]byte{"to a new pod": segment(isolated, peer, 40000, ack), "from a new pod": segment(peer, isolated, 80, ack)} {
		t.Run(name, func(t *testing.T) {
			e := New(Config{})
			e.Swap(policy.New(policy.Model{
				Endpoints: policy.NewEndpoints(map[netip.Addr]*policy.Endpoint{isolated: {Namespace: "x", Name: "isolated", Ingress: chain}}),
				Unknown:   policy.Unknown{Newcomers: []*policy.Endpoint{newPod}},
			}))
			in := Input{Payload: payload, Marked: true}
			if got := e.Decide(in); got != event.LongWait || e.sources.windows[peer] == nil {
				t.Errorf("%d, and its address has a window: %v, want it to wait", got, e.sources.windows[peer] != nil)
			}
			in.Pending, in.Last = true, true
			if got := e.Decide(in); got != event.Drop {
				t.Errorf("one that has waited: %d, want it denied", got)
			}
			e.Swap(policy.New(policy.Model{Endpoints: policy.NewEndpoints(map[netip.Addr]*policy.Endpoint{
				isolated: {Namespace: "x", Name: "isolated", Ingress: chain}, peer: newPod,
			})}))
			if got := e.Decide(in); got != event.Accept || len(e.sources.windows) != 0 {
				t.Errorf("one whose pod is known: %d with %d windows, want it accepted", got, len(e.sources.windows))
			}
		})
	}
}

// A packet that a client repeats while the first one waits is dropped and counted, and is no decision.
func TestRepeatedPacketsAreNoDecisions(t *testing.T) {
	chain := &policy.Chain{Rules: []policy.Rule{
		{Action: policy.Allow, Tier: policy.NetworkPolicyTier, AnyPort: true, Peers: []policy.Peer{{Pods: &policy.PodSelector{Namespace: "x", Pods: labels.Everything()}}}},
		{Tier: policy.NetworkPolicyTier, Index: policy.Isolation, AnyPeer: true, AnyPort: true},
	}}
	s := policy.New(policy.Model{
		Endpoints: policy.NewEndpoints(map[netip.Addr]*policy.Endpoint{isolated: {Namespace: "x", Name: "isolated", Ingress: chain}}),
		Unknown:   policy.Unknown{Newcomers: []*policy.Endpoint{{Namespace: "x", Name: "new"}}},
	})
	e, reg, o := newObserved(s, Config{})
	in := Input{Payload: tcp(netip.MustParseAddr("10.0.1.9"), isolated, 80)}
	for _, want := range []event.Result{event.LongWait, event.Drop} {
		if got := e.Decide(in); got != want {
			t.Errorf("got %d, want %d", got, want)
		}
	}
	if got := total(t, reg, "packet_count"); got != 1 {
		t.Errorf("%d packets are counted, want 1", got)
	}
	for _, name := range []string{"netpol_decisions_total", "netpol_failure_policy_packets_total", "netpol_late_packets_total"} {
		if got := counted(t, reg, name); got != "" {
			t.Errorf("%s counts %s", name, got)
		}
	}
	if records := o.flows.Read(flows.Filter{}); len(records) > 1 || len(o.verdicts.classes) > 0 {
		t.Errorf("recorded %+v, remembered %v", records, o.verdicts.classes)
	}
}
