package agent

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/net/dns/dnsmessage"
	"k8s.io/klog/v2/ktesting"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

func TestObserverNeedsPoliciesWithDomains(t *testing.T) {
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
			o, err := newObserver(tt.cfg, reg, func() {})
			if err != nil || (o != noNames{}) != tt.want {
				t.Errorf("%+v: an observer %v, error %v, want %v", tt.cfg, o, err, tt.want)
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
	o, err := newObserver(Config{Features: compile.AllFeatures(), Kinds: []*compile.Kind{compile.KindClusterNetworkPolicy}}, prometheus.NewRegistry(), func() {})
	if err != nil {
		t.Fatal(err)
	}
	o.Follow(administered(pod4, pod6))
	for _, packet := range lookUp(pod4, "a.test", peer) {
		o.Observe(packet)
	}
	for _, pod := range []netip.Addr{pod4, pod6} {
		if got := o.learned().Names(pod, peer); got == nil || !slices.Equal(*got, policy.Names{"a.test"}) {
			t.Errorf("%v knows %v as %v, want a.test", pod, peer, got)
		}
	}
	o.Follow(policy.New(policy.Model{}))
	if got := o.learned().Names(pod4, peer); got != nil {
		t.Errorf("%v knows %v as %v and is no longer selected", pod4, peer, *got)
	}
}

// TestAReplacedPodKnowsNothing: a pod that replaces another one has its name, and may have its address.
func TestAReplacedPodKnowsNothing(t *testing.T) {
	pod, peer := netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("2001:db8::1")
	o, err := newObserver(Config{Features: compile.AllFeatures(), Kinds: []*compile.Kind{compile.KindClusterNetworkPolicy}}, prometheus.NewRegistry(), func() {})
	if err != nil {
		t.Fatal(err)
	}
	first, second := administered(pod), administered(pod)
	first.Endpoint(pod).ID, second.Endpoint(pod).ID = policy.FirstID, policy.FirstID+1
	o.Follow(first)
	for _, packet := range lookUp(pod, "a.test", peer) {
		o.Observe(packet)
	}
	if o.learned().Names(pod, peer) == nil {
		t.Fatal("nothing is learned")
	}
	o.Follow(second)
	if got := o.learned().Names(pod, peer); got != nil {
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

func TestChangedResolversAreSteered(t *testing.T) {
	pod := netip.MustParseAddr("10.244.1.2")
	l := &fakeObserver{onFollow: func() {}}
	a := newTestAgent(t, prometheus.NewRegistry(), l)
	_, ctx := ktesting.NewTestContext(t)
	find := func(resolvers ...string) {
		l.resolvers = nil
		for _, r := range resolvers {
			l.resolvers = append(l.resolvers, netip.MustParseAddrPort(r))
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
	const selected = "Egress [10.244.1.2]\nToHost [10.244.1.2]\nPods [10.244.1.2]\nNames [10.244.1.2]"
	find("192.0.2.53:53")
	if s, _ := a.steering.latest(); s != nil {
		t.Error("something is steered before the first snapshot")
	}
	a.publish(ctx, administered(pod), time.Now(), true)
	expect(selected + "\nResolvers [192.0.2.53:53]" + owners)
	find("10.96.0.10:53", "192.0.2.53:53")
	expect(selected + "\nResolvers [10.96.0.10:53 192.0.2.53:53]" + owners)
	find()
	expect(selected + owners)
}
