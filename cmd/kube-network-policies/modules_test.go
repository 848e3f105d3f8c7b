package main

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"golang.org/x/net/dns/dnsmessage"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-network-policies/pkg/agent/enforce"
	"sigs.k8s.io/kube-network-policies/pkg/agent/event"
	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
	"sigs.k8s.io/kube-network-policies/pkg/base/tlskey"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// Without modules, with each alone and with all of them, packets get the same results, and none allocates. Only
// names adds something: an address that the pod has learned for a domain in its policy.
func TestModulesChangeNoResult(t *testing.T) {
	web, other, unknown := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.9")
	named, others := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	chain := &policy.Chain{Rules: []policy.Rule{
		{Action: policy.Allow, Tier: policy.NetworkPolicyTier, Policy: &policy.Ref{Name: "web"}, AnyPeer: true, Ports: []policy.Port{{Proto: packet.TCP, First: 80, Last: 80}}},
		{Tier: policy.NetworkPolicyTier, Policy: &policy.Ref{Name: "web"}, Index: policy.Isolation, AnyPeer: true, AnyPort: true},
	}, Policies: []*policy.Ref{{Name: "web"}}}
	outside := &policy.Chain{Rules: []policy.Rule{
		{Action: policy.Allow, Tier: policy.AdminTier, Policy: &policy.Ref{Name: "web"}, Peers: []policy.Peer{{Domains: []policy.Domain{{Name: "a.test"}}}}, AnyPort: true},
		{Tier: policy.NetworkPolicyTier, Policy: &policy.Ref{Name: "web"}, Index: policy.Isolation, AnyPeer: true, AnyPort: true},
	}, Policies: []*policy.Ref{{Name: "web"}}}
	endpoints := policy.NewEndpoints(map[netip.Addr]*policy.Endpoint{web: {Name: "web", ID: policy.FirstID, Ingress: chain, Egress: outside}, other: {Name: "other"}})
	s := policy.New(policy.Model{
		Endpoints: endpoints, Local: policy.NewLocal(endpoints, []netip.Addr{web}),
		Unknown: policy.Unknown{Ranges: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}, Isolating: [2]bool{policy.Ingress: true}},
	})
	results := func(t *testing.T, used ...module.Module) (all []event.Result) {
		var cfg enforce.Config
		for _, m := range used {
			part, err := m.New(&module.Core{Registry: prometheus.NewRegistry()})
			if err != nil {
				t.Fatal(err)
			}
			if part.Tap != nil {
				cfg.Taps = append(cfg.Taps, part.Tap)
			}
			if part.Classes != nil {
				cfg.AcceptClass = part.Classes.Accept
			}
			if part.Learned != nil {
				cfg.Learned = part.Learned
				part.Prepare(s)
				part.Observe.Packet(dnsAnswer(web, "a.test.", named, false))
				part.Observe.Packet(dnsAnswer(web, "a.test.", named, true))
			}
		}
		e := enforce.New(cfg)
		e.Swap(s)
		for _, in := range []enforce.Input{
			{Payload: segment(other, web, 80, 0x02)}, {Payload: segment(other, web, 81, 0x02)}, {Payload: segment(web, named, 443, 0x02)}, {Payload: segment(web, others, 443, 0x02)}, {Payload: segment(web, other, 81, 0x02)},
			{Payload: segment(other, web, 81, 0x10)}, {Payload: segment(other, web, 81, 0x12), Marked: true}, {Payload: []byte{1}},
			{Payload: segment(other, unknown, 80, 0x02)}, {Payload: segment(other, unknown, 80, 0x02), Pending: true, Last: true},
		} {
			all = append(all, e.Decide(in), e.Audit(in))
			if n := testing.AllocsPerRun(100, func() { e.Decide(in) }); n != 0 {
				t.Errorf("%v allocations for %x", n, in.Payload)
			}
		}
		return all
	}
	certificate, err := tlskey.SelfSigned("node-1")
	if err != nil {
		t.Fatal(err)
	}
	o := newOptions()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.AddFlags(fs)
	if err := fs.Parse([]string{"--admin-policies"}); err != nil {
		t.Fatal(err)
	}
	o.client, o.key, o.Kubeconfig, o.serve.AnswersBindAddress = &rest.Config{}, certificate, "x", ":9082" // newpods asks other agents
	without := results(t)
	with := slices.Clone(without)
	with[4], with[5] = event.Accept, event.Accept // by Decide and by Audit
	if without[4] != event.Drop {
		t.Errorf("without modules an address of a domain gets %v", without[4])
	}
	wants := map[string][]event.Result{"domain names": with}
	for i, m := range o.modules {
		t.Run(m.Name, func(t *testing.T) {
			want, ok := wants[m.Name]
			if !ok {
				want = without
			}
			if got := results(t, o.modules[i]); !slices.Equal(got, want) {
				t.Errorf("results %v, want %v", got, want)
			}
		})
	}
	t.Run("all", func(t *testing.T) {
		if got := results(t, o.modules...); !slices.Equal(got, with) {
			t.Errorf("results %v, want %v", got, with)
		}
	})
}

// segment is a TCP segment with flags.
func segment(src, dst netip.Addr, port uint16, flags byte) []byte {
	b := make([]byte, 40)
	b[0], b[9], b[33] = 0x45, byte(packet.TCP), flags
	copy(b[12:], src.AsSlice())
	copy(b[16:], dst.AsSlice())
	binary.BigEndian.PutUint16(b[22:], port)
	return b
}

// dnsAnswer is a pod's query for a name over UDP, or the answer with an address.
func dnsAnswer(pod netip.Addr, name string, addr netip.Addr, answered bool) []byte {
	question := dnsmessage.Question{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, Response: answered}, Questions: []dnsmessage.Question{question}}
	src, dst := netip.AddrPortFrom(pod, 4000), netip.MustParseAddrPort("192.0.2.53:53")
	if answered {
		src, dst = dst, src
		m.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: question.Name, Class: question.Class, TTL: 300},
			Body:   &dnsmessage.AResource{A: addr.As4()},
		}}
	}
	payload, err := m.Pack()
	if err != nil {
		panic(err)
	}
	b := make([]byte, 28, 28+len(payload))
	b[0], b[9] = 0x45, byte(packet.UDP)
	binary.BigEndian.PutUint16(b[2:], uint16(28+len(payload)))
	copy(b[12:], src.Addr().AsSlice())
	copy(b[16:], dst.Addr().AsSlice())
	binary.BigEndian.PutUint16(b[20:], src.Port())
	binary.BigEndian.PutUint16(b[22:], dst.Port())
	binary.BigEndian.PutUint16(b[24:], uint16(8+len(payload)))
	return append(b, payload...)
}
