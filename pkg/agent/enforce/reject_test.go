package enforce

import (
	"net/netip"
	"slices"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/agent/event"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// rejecting returns a snapshot with two isolated pods of this node. Denials of the first one are answered.
func rejecting(t *testing.T) (s *policy.Snapshot, first, second, unknown netip.Addr) {
	t.Helper()
	first, second, unknown = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.9")
	chain := &policy.Chain{Rules: []policy.Rule{
		{Tier: policy.NetworkPolicyTier, Policy: &policy.Ref{Namespace: "x", Name: "none"}, Index: policy.Isolation, AnyPeer: true, AnyPort: true},
	}, Policies: []*policy.Ref{{Namespace: "x", Name: "none"}}}
	endpoints := policy.NewEndpoints(map[netip.Addr]*policy.Endpoint{
		first:  {Namespace: "x", Name: "first", Ingress: chain, Rejects: true},
		second: {Namespace: "x", Name: "second", Ingress: chain},
	})
	return policy.New(policy.Model{Endpoints: endpoints, Local: policy.NewLocal(endpoints, []netip.Addr{first, second}),
		Unknown: policy.Unknown{Ranges: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}, Isolating: [2]bool{policy.Ingress: true}},
	}), first, second, unknown
}

func TestOnlyDecidedDenialsAreRejected(t *testing.T) {
	s, first, second, unknown := rejecting(t)
	client := netip.MustParseAddr("192.0.2.1")
	for _, tt := range []struct {
		name    string
		payload []byte
		edit    func(*Input)
		want    event.Result
	}{
		{"denied by the pod", tcp(client, first, 80), nil, event.Reject},
		{"from another pod", tcp(second, first, 80), nil, event.Reject},
		{"denied by another pod", tcp(client, second, 80), nil, event.Drop},
		{"denied by another pod, from the pod", tcp(first, second, 80), nil, event.Drop},
		{"late", segment(client, first, 80, 0x10), nil, event.Reject},
		{"either way", segment(first, client, 80, 0x12), func(in *Input) { in.Marked = true }, event.Reject},
		{"at another hook", tcp(client, first, 80), func(in *Input) { in.Answerable = false }, event.Drop},
		{"not parsed", []byte{0x45}, nil, event.Drop},
		{"of an unknown pod", tcp(client, unknown, 80), func(in *Input) { in.Last = true }, event.Drop},
		{"allowed", tcp(first, client, 80), nil, event.Accept},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := New(Config{})
			e.Swap(s)
			in := Input{Payload: tt.payload, Answerable: true}
			if tt.edit != nil {
				tt.edit(&in)
			}
			if got := e.Decide(in); got != tt.want {
				t.Errorf("result %d, want %d", got, tt.want)
			}
		})
	}
	e := New(Config{})
	if got := e.Decide(Input{Payload: tcp(client, first, 80), Answerable: true, Last: true}); got != event.Drop {
		t.Errorf("without a snapshot: result %d, want Drop", got)
	}
}

// The kernel answers a remembered class if either of its pods is answered, so that a class is not remembered
// where the agent does not answer.
func TestRememberedDenialsAreAnsweredAlike(t *testing.T) {
	s, first, second, _ := rejecting(t)
	client := netip.MustParseAddr("192.0.2.1")
	var denied classRecorder
	e := New(Config{AcceptClass: denied.remember, Taps: []event.Tap{denied.tap}})
	e.Swap(s)
	for _, ends := range [][2]netip.Addr{{client, first}, {client, second}, {second, first}, {first, second}} {
		e.Decide(Input{Payload: tcp(ends[0], ends[1], 80), Answerable: true})
	}
	var got [][2]netip.Addr
	for _, c := range denied.classes {
		got = append(got, [2]netip.Addr{c.Src, c.Dst})
	}
	if want := [][2]netip.Addr{{client, first}, {client, second}, {second, first}}; !slices.Equal(got, want) {
		t.Errorf("remembered %v, want %v", got, want)
	}
}
