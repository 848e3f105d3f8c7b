package names

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/net/dns/dnsmessage"

	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// newTestPart returns the part of a module with policies that name domains.
func newTestPart(t *testing.T) module.Part {
	t.Helper()
	part, err := newPart(Config{Features: compile.AllFeatures(), Kinds: []*compile.Kind{compile.KindClusterNetworkPolicy}}, nil, &module.Core{Registry: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	return part
}

// administered returns a snapshot with a pod whose policy names domains.
func administered(id uint32, addrs ...netip.Addr) *policy.Snapshot {
	pod := &policy.Endpoint{Namespace: "x", Name: "web", ID: id, Egress: &policy.Chain{Rules: []policy.Rule{
		{Tier: policy.AdminTier, Action: policy.Allow, AnyPort: true, Peers: []policy.Peer{{Domains: []policy.Domain{{Name: "a.test"}}}}},
	}}}
	endpoints := make(map[netip.Addr]*policy.Endpoint)
	for _, addr := range addrs {
		endpoints[addr] = pod
	}
	known := policy.NewEndpoints(endpoints)
	return policy.New(policy.Model{Endpoints: known, Local: policy.NewLocal(known, addrs)})
}

func TestPoliciesWithDomainsAreNeeded(t *testing.T) {
	all := compile.AllFeatures()
	off := all
	off.DomainNames = false
	for _, tt := range []struct {
		cfg  Config
		want bool
	}{
		{Config{Features: all}, false},
		{Config{Features: all, Kinds: []*compile.Kind{compile.KindAdminNetworkPolicy}}, true},
		{Config{Features: all, Kinds: []*compile.Kind{compile.KindClusterNetworkPolicy}}, true},
		{Config{Features: all, Kinds: []*compile.Kind{compile.KindBaselineAdminNetworkPolicy}}, false},
		{Config{Features: off, Kinds: []*compile.Kind{compile.KindClusterNetworkPolicy}}, false},
	} {
		t.Run(fmt.Sprint(tt.cfg.Kinds, tt.cfg.Features.DomainNames), func(t *testing.T) {
			reg := prometheus.NewRegistry()
			part, err := newPart(tt.cfg, nil, &module.Core{Registry: reg})
			if err != nil || (part.Learned != nil) != tt.want || (part.Observe != nil) != tt.want {
				t.Errorf("%+v: a part %+v, error %v, want %v", tt.cfg, part, err, tt.want)
			}
			if n, err := testutil.GatherAndCount(reg); err != nil || (n > 0) != tt.want {
				t.Errorf("%+v: %d metrics, %v", tt.cfg, n, err)
			}
		})
	}
}

// TestAddressesOfPodShareNames looks up a name from the pod's IPv4 address.
func TestAddressesOfPodShareNames(t *testing.T) {
	pod4, pod6, peer := netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("fd00::2"), netip.MustParseAddr("2001:db8::1")
	part := newTestPart(t)
	part.Prepare(administered(policy.FirstID, pod4, pod6))
	for _, packet := range lookUp(pod4, "a.test", peer) {
		part.Observe.Packet(packet)
	}
	for _, pod := range []netip.Addr{pod4, pod6} {
		if got := part.Learned.Names(pod, peer); got == nil || !slices.Equal(*got, policy.Names{"a.test"}) {
			t.Errorf("%v knows %v as %v, want a.test", pod, peer, got)
		}
	}
	part.Prepare(policy.New(policy.Model{}))
	if got := part.Learned.Names(pod4, peer); got != nil {
		t.Errorf("%v knows %v as %v and is no longer selected", pod4, peer, *got)
	}
}

// TestAReplacedPodKnowsNothing: a pod that replaces another one has its name, and may have its address.
func TestAReplacedPodKnowsNothing(t *testing.T) {
	pod, peer := netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("2001:db8::1")
	part := newTestPart(t)
	part.Prepare(administered(policy.FirstID, pod))
	for _, packet := range lookUp(pod, "a.test", peer) {
		part.Observe.Packet(packet)
	}
	if part.Learned.Names(pod, peer) == nil {
		t.Fatal("nothing is learned")
	}
	part.Prepare(administered(policy.FirstID+1, pod))
	if got := part.Learned.Names(pod, peer); got != nil {
		t.Errorf("the new pod knows %v as %v", peer, *got)
	}
}

// lookUp returns the packets of a pod's query and of its answer with an IPv6 address.
func lookUp(pod netip.Addr, name string, addr netip.Addr) [][]byte {
	question := []dnsmessage.Question{{Name: dnsmessage.MustNewName(name + "."), Type: dnsmessage.TypeAAAA, Class: dnsmessage.ClassINET}}
	ask := dnsmessage.Message{Header: dnsmessage.Header{ID: 7}, Questions: question}
	answer := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, Response: true}, Questions: question, Answers: []dnsmessage.Resource{{
		Header: dnsmessage.ResourceHeader{Name: question[0].Name, Class: dnsmessage.ClassINET, TTL: 300},
		Body:   &dnsmessage.AAAAResource{AAAA: addr.As16()},
	}}}
	client, resolver := netip.AddrPortFrom(pod, 4000), netip.MustParseAddrPort("192.0.2.53:53")
	return [][]byte{datagram(client, resolver, ask), datagram(resolver, client, answer)}
}

// datagram is a message over UDP and IPv4.
func datagram(src, dst netip.AddrPort, m dnsmessage.Message) []byte {
	payload, err := m.Pack()
	if err != nil {
		panic(err)
	}
	b := make([]byte, 28, 28+len(payload))
	b[0], b[8], b[9] = 4<<4|5, 64, byte(packet.UDP)
	binary.BigEndian.PutUint16(b[2:], uint16(28+len(payload)))
	copy(b[12:], src.Addr().AsSlice())
	copy(b[16:], dst.Addr().AsSlice())
	binary.BigEndian.PutUint16(b[20:], src.Port())
	binary.BigEndian.PutUint16(b[22:], dst.Port())
	binary.BigEndian.PutUint16(b[24:], uint16(8+len(payload)))
	return append(b, payload...)
}

func TestResolversFlag(t *testing.T) {
	for args, want := range map[string]string{
		"":                                  "[]",
		"10.96.0.10":                        "[10.96.0.10:53]",
		"[fd00::a]:5353":                    "[[fd00::a]:5353]",
		"10.96.0.10,fd00::a 192.0.2.1:5353": "[10.96.0.10:53 [fd00::a]:53 192.0.2.1:5353]",
	} {
		t.Run(args, func(t *testing.T) {
			var only []netip.AddrPort
			for _, list := range strings.Split(args, " ") {
				var err error
				if only, err = addResolvers(only, list); err != nil {
					t.Error(err)
				}
			}
			if fmt.Sprint(only) != want {
				t.Errorf("resolvers %v, want %s", only, want)
			}
		})
	}
}
