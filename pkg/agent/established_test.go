package agent

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/pkg/agent/enforce"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/conntrack"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer"
)

// TestOnlyPermanentlyDeniedIsBlocked has a pod of this node that accepts nothing, and an
// address in its range that may belong to a new pod.
func TestOnlyPermanentlyDeniedIsBlocked(t *testing.T) {
	isolated, open := netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("10.244.1.3")
	evaluate := established(policy.New(policy.Model{
		Endpoints: policy.NewEndpoints(map[netip.Addr]*policy.Endpoint{
			isolated: {Namespace: "x", Name: "isolated", Ingress: &policy.Chain{Rules: []policy.Rule{{
				Action: policy.Allow, Tier: policy.NetworkPolicyTier, Policy: &policy.Ref{Namespace: "x", Name: "deny"}, AnyPort: true,
				Peers: []policy.Peer{{Pods: &policy.PodSelector{Namespace: "db", Pods: labels.Everything()}}},
			}, {
				Action: policy.Deny, Tier: policy.NetworkPolicyTier, Policy: &policy.Ref{Namespace: "x", Name: "deny"}, Index: policy.Isolation,
				AnyPeer: true, AnyPort: true,
			}}}},
			open: {Namespace: "x", Name: "open"},
		}),
		Unknown: policy.Unknown{Ranges: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}, Isolating: [2]bool{policy.Ingress: true}},
	}), nil, noInterfaces, nil)
	for _, tt := range []struct {
		src, dst string
		want     conntrack.Verdict
	}{
		{"10.244.1.3:40000", "10.244.1.2:80", conntrack.Block},
		{"192.0.2.1:40000", "10.244.1.2:80", conntrack.Block},
		{"10.244.1.2:40000", "10.244.1.3:80", conntrack.Unselected},
		{"192.0.2.1:40000", "192.0.2.2:80", conntrack.Unselected},
		{"192.0.2.1:40000", "10.244.1.9:80", conntrack.Keep},
		{"10.244.1.9:40000", "10.244.1.2:80", conntrack.Keep},
	} {
		t.Run(tt.src+" to "+tt.dst, func(t *testing.T) {
			p := packet.Packet{Src: netip.MustParseAddrPort(tt.src), Dst: netip.MustParseAddrPort(tt.dst), Proto: packet.TCP}
			if got := evaluate(p, false); got != tt.want {
				t.Errorf("%v: %d, want %d", p, got, tt.want)
			}
		})
	}
}

// learned gives every address the same names.
type learned policy.Names

func (l learned) Names(_, _ netip.Addr) *policy.Names { return (*policy.Names)(&l) }

// TestEstablishedToHostAndNames has pods that may not send: by NetworkPolicy, by an
// administrator, and by an administrator except to some domains.
func TestEstablishedToHostAndNames(t *testing.T) {
	const isolated, denied, named, service = "10.244.1.2", "10.244.1.3", "10.244.1.4", "10.244.1.5"
	const outside, pod, node, metadata = "192.0.2.1", "10.244.2.1", "192.0.2.2", "169.254.169.254"
	isolate := policy.Rule{Tier: policy.NetworkPolicyTier, Policy: &policy.Ref{Namespace: "x", Name: "deny"}, Index: policy.Isolation, AnyPeer: true, AnyPort: true}
	deny := policy.Rule{Tier: policy.AdminTier, Policy: &policy.Ref{Kind: "AdminNetworkPolicy", Name: "deny"}, AnyPeer: true, AnyPort: true}
	allow := policy.Rule{Tier: policy.AdminTier, Policy: &policy.Ref{Kind: "AdminNetworkPolicy", Name: "deny"}, Action: policy.Allow, AnyPort: true,
		Peers: []policy.Peer{{Domains: []policy.Domain{{Name: "a.test"}, {Name: "b.test", Below: true}}}}}
	services := allow
	services.Peers = []policy.Peer{{Domains: []policy.Domain{{Name: "cluster.local", Below: true}}}}
	endpoints := map[netip.Addr]*policy.Endpoint{}
	for addr, rules := range map[string][]policy.Rule{isolated: {isolate}, denied: {deny}, named: {allow, deny}, service: {services, deny}} {
		endpoints[netip.MustParseAddr(addr)] = &policy.Endpoint{Namespace: "x", Name: addr, Egress: &policy.Chain{Rules: rules}}
	}
	endpoints[netip.MustParseAddr(pod)] = &policy.Endpoint{Namespace: "y", Name: pod}
	s := policy.New(policy.Model{Endpoints: policy.NewEndpoints(endpoints), Hosts: map[netip.Addr]*policy.Host{netip.MustParseAddr(node): {}}})
	for _, tt := range []struct {
		src, dst string
		toHost   bool
		knows    policy.Learned
		want     conntrack.Verdict
	}{
		{isolated, outside, false, nil, conntrack.Block},
		{isolated, outside, true, nil, conntrack.Unblock},
		{denied, outside, false, nil, conntrack.Block},
		{denied, outside, true, nil, conntrack.Block},
		{denied, outside, false, learned{"a.test"}, conntrack.Block},
		{named, outside, false, learned{"a.test"}, conntrack.Unblock},
		{named, outside, false, learned{"c.test"}, conntrack.Keep},
		{named, outside, false, nil, conntrack.Keep},
		// Names never match addresses of the cluster or of metadata services, so they cannot have
		// allowed these.
		{named, outside, true, learned{"x.b.test"}, conntrack.Block},
		{named, outside, true, nil, conntrack.Block},
		{named, pod, false, learned{"a.test"}, conntrack.Block},
		{named, node, false, nil, conntrack.Block},
		{named, metadata, false, learned{"a.test"}, conntrack.Block},
		{service, pod, false, learned{"x.y.svc.cluster.local"}, conntrack.Unblock},
		{service, pod, false, nil, conntrack.Keep},
		{service, node, false, nil, conntrack.Keep},
		{service, metadata, false, nil, conntrack.Block},
	} {
		t.Run(fmt.Sprintf("from %s to %s, to the node %v, with names %v", tt.src, tt.dst, tt.toHost, tt.knows), func(t *testing.T) {
			p := packet.Packet{
				Src:   netip.AddrPortFrom(netip.MustParseAddr(tt.src), 40000),
				Dst:   netip.AddrPortFrom(netip.MustParseAddr(tt.dst), 80),
				Proto: packet.TCP,
			}
			if got := established(s, tt.knows, noInterfaces, nil)(p, tt.toHost); got != tt.want {
				t.Errorf("%v, to the node %v, with names %v: %d, want %d", p, tt.toHost, tt.knows, got, tt.want)
			}
		})
	}
}

// TestConnectionsThatWereNotEvaluatedAreListed has pods that policies begin to select, in one
// snapshot after another. Packets of addresses of the node's range that no pod has wait.
func TestConnectionsThatWereNotEvaluatedAreListed(t *testing.T) {
	const a, b, outside = "10.244.1.2", "10.244.1.3", "192.0.2.7"
	rules := func(tier policy.Tier) *policy.Chain {
		return &policy.Chain{Rules: []policy.Rule{{Tier: tier, Policy: &policy.Ref{Namespace: "x", Name: "deny"}, AnyPeer: true, AnyPort: true}}}
	}
	type pods map[string]policy.Endpoint
	snapshot := func(p pods) *policy.Snapshot {
		endpoints, local := map[netip.Addr]*policy.Endpoint{}, []netip.Addr{}
		for addr, e := range p {
			endpoints[netip.MustParseAddr(addr)] = &e
			local = append(local, netip.MustParseAddr(addr))
		}
		slices.SortFunc(local, netip.Addr.Compare)
		known := policy.NewEndpoints(endpoints)
		return policy.New(policy.Model{
			Endpoints: known, Local: policy.NewLocal(known, local),
			Unknown: policy.Unknown{Ranges: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}, Isolating: [2]bool{true, true}},
		})
	}
	isolated := rules(policy.NetworkPolicyTier)
	for _, tt := range []struct {
		name             string
		before, now      pods
		opened, answered string
	}{
		{"selected for ingress", pods{a: {}, b: {}}, pods{a: {Ingress: isolated}, b: {}}, "[]", "[10.244.1.2]"},
		{"selected for egress", pods{a: {}}, pods{a: {Egress: isolated}}, "[10.244.1.2]", "[]"},
		{"selected for the other direction, too", pods{a: {Egress: isolated}}, pods{a: {Egress: isolated, Ingress: isolated}}, "[]", "[10.244.1.2]"},
		{"to the node, too", pods{a: {Egress: isolated}}, pods{a: {Egress: rules(policy.AdminTier)}}, "[10.244.1.2]", "[]"},
		{"still selected", pods{a: {Ingress: isolated}}, pods{a: {Ingress: rules(policy.NetworkPolicyTier)}}, "[]", "[]"},
		{"no longer selected", pods{a: {Ingress: isolated}}, pods{a: {}}, "[]", "[]"},
		{"a new pod whose packets waited", pods{}, pods{a: {Ingress: isolated, Egress: isolated}}, "[]", "[]"},
		{"a new pod whose packets did not", pods{}, pods{outside: {Ingress: isolated}}, "[]", "[192.0.2.7]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := changeSince(snapshot(tt.before), snapshot(tt.now))
			if got := fmt.Sprint(c.Opened, c.Answered); got != tt.opened+" "+tt.answered {
				t.Errorf("opened by and to: %s, want %s %s", got, tt.opened, tt.answered)
			}
			if c.All != false {
				t.Error("all connections may be evaluated otherwise")
			}
		})
	}
	if c := changeSince(nil, snapshot(pods{})); !c.All {
		t.Error("the first snapshot does not concern all connections")
	}
}

// newTestBlocker returns a blocker that does not run.
func newTestBlocker(t testing.TB, reg prometheus.Registerer) *conntrack.Blocker {
	t.Helper()
	blocker, err := conntrack.New(conntrack.Config{Mark: steer.DefaultLowerMark, Registerer: reg})
	if err != nil {
		t.Fatal(err)
	}
	return blocker
}

// TestASavedStateBlocksNothing: the first snapshot of complete lists evaluates all
// connections, whatever the saved state was.
func TestASavedStateBlocksNothing(t *testing.T) {
	for _, listed := range []bool{false, true} {
		t.Run(fmt.Sprintf("listed %v", listed), func(t *testing.T) {
			reg := prometheus.NewRegistry()
			a := newTestAgent(t, reg)
			a.publish(t.Context(), policy.New(policy.Model{}), time.Now(), listed)
			if a.blocks != listed {
				t.Errorf("the blocker has a snapshot: %v", a.blocks)
			}
		})
	}
}

func noInterfaces() *enforce.Interfaces { return nil }

// Where equal routes lead to two pods, or to a pod and elsewhere, a connection is blocked if it is denied for
// all of them.
func TestConnectionsByEqualRoutes(t *testing.T) {
	addr, prefix := netip.MustParseAddr, netip.MustParsePrefix
	closed, shut, open := addr("10.0.0.1"), addr("10.0.0.2"), addr("10.0.0.3")
	deny := &policy.Chain{Rules: []policy.Rule{{Tier: policy.AdminTier, Policy: &policy.Ref{Kind: "AdminNetworkPolicy", Name: "deny"}, AnyPeer: true, AnyPort: true}}}
	endpoints := policy.NewEndpoints(map[netip.Addr]*policy.Endpoint{
		closed: {Namespace: "x", Name: "closed", Ingress: deny, Egress: deny}, shut: {Namespace: "x", Name: "shut", Ingress: deny, Egress: deny}, open: {Namespace: "x", Name: "open"},
	})
	s := policy.New(policy.Model{Endpoints: endpoints, Local: policy.NewLocal(endpoints, []netip.Addr{closed, shut, open})})
	links := map[uint32]enforce.Behind{1: {Pod: []netip.Addr{closed}}, 2: {Pod: []netip.Addr{shut}}, 3: {Pod: []netip.Addr{open}}, 4: {}}
	for _, tt := range []struct {
		links []uint32
		want  conntrack.Verdict
	}{
		{[]uint32{1}, conntrack.Block},
		{[]uint32{1, 2}, conntrack.Block},
		{[]uint32{1, 3}, conntrack.Unblock},
		{[]uint32{1, 4}, conntrack.Unblock}, // evaluated again with each change
		{[]uint32{4}, conntrack.Unselected},
	} {
		i := &enforce.Interfaces{Links: links, Routes: []enforce.Route{{To: prefix("192.0.2.8/32"), Link: 4}}}
		for _, link := range tt.links {
			i.Routes = append(i.Routes, enforce.Route{To: prefix("192.0.2.0/24"), Link: link})
		}
		i.Routes = append(i.Routes, enforce.Route{To: prefix("192.0.0.0/16"), Link: 3})
		evaluate := established(s, nil, func() *enforce.Interfaces { return i }, nil)
		p := packet.Packet{Src: netip.MustParseAddrPort("192.0.2.1:4000"), Dst: netip.MustParseAddrPort("198.51.100.1:80"), Proto: packet.TCP}
		for _, p := range []packet.Packet{p, p.Swapped()} {
			if got := evaluate(p, false); got != tt.want {
				t.Errorf("%v by links %v: %d, want %d", p, tt.links, got, tt.want)
			}
		}
	}
}

// A change of a pod concerns the addresses that the node routes to it, and of networks all connections.
func TestChangesConcernAddressesBehindPods(t *testing.T) {
	addr, prefix := netip.MustParseAddr, netip.MustParsePrefix
	one, two, three, vip, other := addr("10.0.0.1"), addr("10.0.0.2"), addr("10.0.0.3"), addr("192.0.2.1"), addr("192.0.2.2")
	i := &enforce.Interfaces{
		Links:  map[uint32]enforce.Behind{1: {Name: "one", Pod: []netip.Addr{one}}, 2: {Name: "two", Pod: []netip.Addr{two}}, 3: {}},
		Routes: []enforce.Route{{To: prefix("192.0.2.1/32"), Link: 1}, {To: prefix("192.0.2.2/32"), Link: 3}, {To: prefix("10.8.0.0/24"), Link: 2}},
	}
	for _, tt := range []struct {
		name         string
		change, want conntrack.Change
	}{
		{"an address", conntrack.Change{Addrs: []netip.Addr{one, three}}, conntrack.Change{Addrs: []netip.Addr{one, three, vip}}},
		{"newly selected", conntrack.Change{Opened: []netip.Addr{one}, Answered: []netip.Addr{one}},
			conntrack.Change{Opened: []netip.Addr{one, vip}, Answered: []netip.Addr{one, vip}}},
		{"a network", conntrack.Change{Addrs: []netip.Addr{two}}, conntrack.Change{Addrs: []netip.Addr{two}, All: true, Links: []string{"two"}}},
		{"neither", conntrack.Change{Addrs: []netip.Addr{three, other}}, conntrack.Change{Addrs: []netip.Addr{three, other}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := withRouted(tt.change, i); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}
