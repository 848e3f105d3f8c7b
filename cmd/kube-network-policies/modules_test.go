package main

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-network-policies/pkg/agent/enforce"
	"sigs.k8s.io/kube-network-policies/pkg/agent/event"
	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
	"sigs.k8s.io/kube-network-policies/pkg/base/tlskey"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// Without modules, with each alone and with all of them, packets get the same results, and none allocates.
func TestModulesChangeNoResult(t *testing.T) {
	web, other, unknown := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.9")
	chain := &policy.Chain{Rules: []policy.Rule{
		{Action: policy.Allow, Tier: policy.NetworkPolicyTier, Policy: &policy.Ref{Name: "web"}, AnyPeer: true, Ports: []policy.Port{{Proto: packet.TCP, First: 80, Last: 80}}},
		{Tier: policy.NetworkPolicyTier, Policy: &policy.Ref{Name: "web"}, Index: policy.Isolation, AnyPeer: true, AnyPort: true},
	}, Policies: []*policy.Ref{{Name: "web"}}}
	s := policy.New(policy.Model{
		Endpoints: policy.NewEndpoints(map[netip.Addr]*policy.Endpoint{web: {Name: "web", Ingress: chain}, other: {Name: "other"}}),
		Unknown:   policy.Unknown{Ranges: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}, Isolating: [2]bool{policy.Ingress: true}},
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
		}
		e := enforce.New(cfg)
		e.Swap(s)
		for _, in := range []enforce.Input{
			{Payload: segment(other, web, 80, 0x02)}, {Payload: segment(other, web, 81, 0x02)}, {Payload: segment(web, other, 81, 0x02)},
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
	o.AddFlags(pflag.NewFlagSet("", pflag.ContinueOnError))
	o.client, o.key, o.Kubeconfig, o.serve.AnswersBindAddress = &rest.Config{}, certificate, "x", ":9082" // newpods asks other agents
	want := results(t)
	for i, m := range o.modules {
		t.Run(m.Name, func(t *testing.T) {
			if got := results(t, o.modules[i]); !slices.Equal(got, want) {
				t.Errorf("results %v, without modules %v", got, want)
			}
		})
	}
	t.Run("all", func(t *testing.T) {
		if got := results(t, o.modules...); !slices.Equal(got, want) {
			t.Errorf("results %v, without modules %v", got, want)
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
