package steer

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer/steertest"
)

// A connection of a stale address may belong to the pod that had the address before.
func TestStaleAddressIsQueued(t *testing.T) {
	established, related, accepted := state(steertest.Established), state(steertest.Related), marked(0, DefaultMark)
	for _, tt := range []struct {
		stale []netip.Addr
		want  steertest.Verdict
	}{{[]netip.Addr{v4, v6}, queue}, {nil, accept}} {
		t.Run(fmt.Sprintf("stale %v", tt.stale != nil), func(t *testing.T) {
			s, fake := newFake(t, func(c *Config) { c.EarlyUDP = EarlyOn })
			mustSync(t, s, Sets{Stale: tt.stale, ToHost: []netip.Addr{v4b}})
			checkTraces(t, fake, []traceCase{
				{"first packet to it", pkt(peer4, v4), tt.want},
				{"first packet from it", pkt(v6, peer6), tt.want},
				{"old connection", pkt(peer4, v4, proto("tcp"), established), tt.want},
				{"old connection", pkt(peer6, v6, proto("tcp"), established), tt.want},
				{"reply of an old connection", pkt(v4, peer4, proto("tcp"), established, reply), tt.want},
				{"reply to it", pkt(peer6, v6, proto("tcp"), established, reply), tt.want},
				{"old flow that was accepted", pkt(peer4, v4, accepted), tt.want},
				{"old flow that was accepted", pkt(v6, peer6, established, accepted), tt.want},
				{"early", pkt(peer4, v4, forwarded, translated, accepted), tt.want},
				{"ICMP error", pkt(peer4, v4, proto("icmp"), related), tt.want},

				{"neighbour discovery", pkt(peer6, v6, icmpv6(135, 255)), accept},
				{"own node", pkt(peer4, v4, fromNode), accept},
				{"to its own node", pkt(v4, peer4, established, toHost), accept},
				{"others", pkt(peer4, v4b, proto("tcp"), established), accept},
				{"others", pkt(v6b, peer6, accepted), accept},
			})
		})
	}
}

func TestOwnersSurviveRestart(t *testing.T) {
	fake := knftables.NewFake(knftables.InetFamily, TableName)
	s := newOn(t, fake, nil)
	if got, err := s.Owners(t.Context()); len(got) != 0 || err != nil {
		t.Errorf("on a new node: %v, %v", got, err)
	}
	first := []Owner{{v4, 7}, {v4b, 0xffffffff}, {v6, 7}}
	for _, want := range [][]Owner{first, {{v4, 8}, {v6, 7}}, {}, first} {
		mustSync(t, s, Sets{Owners: want})
		s = newOn(t, fake, nil)
		got, err := s.Owners(t.Context())
		slices.SortFunc(got, func(a, b Owner) int { return a.Addr.Compare(b.Addr) })
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("got %v, %v, want %v", got, err, want)
		}
	}
	tamper(t, fake, func(tx *knftables.Transaction) {
		tx.Add(&knftables.Element{Set: "owners-v4", Key: []string{"10.0.0.9", "many"}})
	})
	if got, err := s.Owners(t.Context()); len(got) != len(first) || err != nil {
		t.Errorf("with an element that cannot be decoded: %v, %v, want %v", got, err, first)
	}
}

func TestKernelOwnersSurviveRestart(t *testing.T) {
	newNode(t)
	s := newReal(t, nil)
	want := []Owner{{v4, 7}, {v4b, 0xfffffffe}, {v6, 0x01020304}}
	mustSync(t, s, Sets{Owners: want})
	got, err := s.Owners(t.Context())
	slices.SortFunc(got, func(a, b Owner) int { return a.Addr.Compare(b.Addr) })
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	mustShell(t, "nft delete table inet "+TableName)
	if got, err := s.Owners(t.Context()); len(got) != 0 || err != nil {
		t.Errorf("without a table: %v, %v", got, err)
	}
}

func TestAppliedReportsEachSerial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var applied []uint64
		nft := &broken{Fake: knftables.NewFake(knftables.InetFamily, TableName)}
		s := newOn(t, nft, func(c *Config) {
			c.Registerer = prometheus.NewRegistry()
			c.Applied = func(serial uint64) { applied = append(applied, serial) }
		})
		for i, err := range []error{nil, nil, errNotSynced, nil} {
			nft.err = err
			s.Set(Sets{Ingress: []netip.Addr{v4}, Serial: uint64(i)})
			_ = s.sync(testContext(t))
			_ = s.sync(testContext(t))
		}
		if want := []uint64{0, 1, 2, 3}; !slices.Equal(applied, want) {
			t.Errorf("applied %v, want %v, with those that change nothing", applied, want)
		}
		nft.err = errNotSynced
		s.Set(Sets{Ingress: []netip.Addr{v6}, Serial: 9})
		if err := s.sync(testContext(t)); err == nil || applied[len(applied)-1] == 9 {
			t.Errorf("applied %v, and the sync ended with %v", applied, err)
		}
	})
}
