package enforce

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

func TestNewcomersAreBounded(t *testing.T) {
	// Neighbours are in different networks.
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(i), byte(i >> 8), byte(i >> 16)}) }
	at := func(d time.Duration) time.Time { return time.Unix(1000, 0).Add(d) }
	admitted := func(n *newcomers, i int, now time.Time, packets int) (count int) {
		for range packets {
			if n.admit(addr(i), now) {
				count++
			}
		}
		return count
	}
	t.Run("packets of one address", func(t *testing.T) {
		n := newNewcomers()
		if got := admitted(n, 1, at(0), 100); got != newcomerPackets {
			t.Errorf("%d packets wait, want %d", got, newcomerPackets)
		}
		if got := admitted(n, 2, at(0), 1); got != 1 {
			t.Error("another address does not wait")
		}
	})
	t.Run("an address that stays unknown", func(t *testing.T) {
		n := newNewcomers()
		for _, c := range []struct {
			after time.Duration
			want  int
		}{{0, 1}, {newcomerWindow - 1, 1}, {newcomerWindow, 0}, {newcomerRest - 1, 0}, {newcomerRest, 1}, {newcomerRest + newcomerWindow, 0}} {
			if got := admitted(n, 1, at(c.after), 1); got != c.want {
				t.Errorf("after %v %d packets wait, want %d", c.after, got, c.want)
			}
		}
	})
	t.Run("all addresses together", func(t *testing.T) {
		n := newNewcomers()
		count := 0
		for i := range 10 * newcomerRate {
			count += admitted(n, i, at(0), 1)
		}
		if count != newcomerRate {
			t.Errorf("%d packets wait, want %d", count, newcomerRate)
		}
		if got := admitted(n, 1_000_000, at(time.Second), 1); got != 1 {
			t.Error("a second later no packet waits")
		}
	})
	t.Run("addresses of one network", func(t *testing.T) {
		n := newNewcomers()
		count := 0
		for i := range newcomerRate {
			if n.admit(netip.AddrFrom4([4]byte{10, 1, 2, byte(i)}), at(0)) {
				count++
			}
		}
		if count != newcomerNetworkRate {
			t.Errorf("%d packets wait, want %d", count, newcomerNetworkRate)
		}
		if !n.admit(netip.MustParseAddr("10.1.3.1"), at(0)) {
			t.Error("an address of another network does not wait")
		}
		if !n.admit(netip.MustParseAddr("10.1.2.1"), at(time.Second)) {
			t.Error("a second later an address of that network does not wait")
		}
	})
	t.Run("what is remembered", func(t *testing.T) {
		n := newNewcomers()
		for i := range 5 * newcomerAddresses {
			n.admit(addr(i), at(time.Duration(i)*10*time.Millisecond))
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
	e := New(Config{Registerer: prometheus.NewPedanticRegistry()})
	e.Swap(policy.New(policy.Model{
		Endpoints: policy.NewEndpoints(map[netip.Addr]*policy.Endpoint{isolated: {Namespace: "x", Name: "isolated", Ingress: chain}}),
		Newcomers: []*policy.Endpoint{{Namespace: "x", Name: "new", Labels: policy.NewLabels(labels.Set{"app": "web"})}},
	}))
	in := Input{Payload: tcp(netip.MustParseAddr("10.0.1.9"), isolated, 80)}
	for range newcomerPackets {
		if got := e.Decide(in); got != Unannounced {
			t.Errorf("a packet: %d, want it to wait", got)
		}
	}
	if got := e.Decide(in); got != Drop {
		t.Errorf("one packet too many: %d, want it denied", got)
	}
	in.Pending = true
	if got := e.Decide(in); got != Unannounced {
		t.Errorf("a packet that waits already: %d, want it to wait", got)
	}
	in.Last = true
	if got := e.Decide(in); got != Drop {
		t.Errorf("one that has waited: %d, want it denied", got)
	}
}
