package steer

import (
	"errors"
	"net/netip"
	"testing"

	"sigs.k8s.io/knftables"
)

// mustClose closes addresses and ranges and syncs once.
func mustClose(t *testing.T, s *Steerer, addrs []netip.Addr, ranges ...netip.Prefix) {
	t.Helper()
	s.Close(Sets{Ingress: addrs, Egress: addrs, IngressRanges: ranges, EgressRanges: ranges})
	if err := s.sync(testContext(t)); err != nil {
		t.Fatal(err)
	}
}

func TestCloseSteersUntilTheFirstSet(t *testing.T) {
	narrow, wide := netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("10.244.0.0/16")
	s, fake := newFake(t, nil)
	mustSync(t, s, Sets{Ingress: []netip.Addr{v4}, IngressRanges: []netip.Prefix{narrow}})
	s = newOn(t, fake, nil) // as after a crash of the run that closed it

	mustClose(t, s, nil)
	mustClose(t, s, []netip.Addr{v6}, wide)
	want := Sets{Ingress: []netip.Addr{v4, v6}, Egress: []netip.Addr{v6}, IngressRanges: []netip.Prefix{wide}, EgressRanges: []netip.Prefix{wide}}.contents()
	want[familyName(podsSet, false)] = elements{}
	if got := fakeContents(fake); !equalContents(got, want) {
		t.Errorf("closed: %v, want %v", got, want)
	}
	if err := s.Healthy(); !errors.Is(err, errNotSynced) {
		t.Errorf("closed: %v, want %v", err, errNotSynced)
	}

	mustSync(t, s, Sets{Egress: []netip.Addr{v4}})
	mustClose(t, s, []netip.Addr{v6}, wide)
	if got, want := fakeContents(fake), (Sets{Egress: []netip.Addr{v4}}).contents(); !equalContents(got, want) {
		t.Errorf("after the first desired state: %v, want %v", got, want)
	}
	if err := s.Healthy(); err != nil {
		t.Error(err)
	}
}

// A first Set of the same addresses changes no element, but the table is synced then.
func TestAFirstSetOfTheSameAddressesIsFinal(t *testing.T) {
	s, _ := newFake(t, nil)
	mustClose(t, s, []netip.Addr{v4})
	mustSync(t, s, Sets{Ingress: []netip.Addr{v4}, Egress: []netip.Addr{v4}})
	if err := s.Healthy(); err != nil {
		t.Error(err)
	}
}

// Close keeps a table of another layout: for example, an operator opens a node with an empty table.
func TestCloseKeepsAnotherTable(t *testing.T) {
	s, fake := newFake(t, nil)
	mustClose(t, s, []netip.Addr{v4})
	tx := fake.NewTransaction()
	tx.Delete(&knftables.Table{})
	tx.Add(&knftables.Table{})
	if err := fake.Run(testContext(t), tx); err != nil {
		t.Fatal(err)
	}
	s.observed = nil // as after a notification
	mustClose(t, s, []netip.Addr{v4b})
	if n := len(fake.Table.Chains); n > 0 {
		t.Errorf("%d chains in an empty table", n)
	}
	mustSync(t, s, isolatedPod)
	if got := fakeContents(fake); !equalContents(got, isolatedPod.contents()) {
		t.Errorf("after the first desired state: %v", got)
	}
}

// Close does not take over the table of an agent that may decide packets.
func TestCloseTakesNothingOver(t *testing.T) {
	m := newMachine()
	heldBy(1, 200)(t, m)
	a := m.agent(t, 2, 300)
	mustClose(t, a.Steerer, []netip.Addr{v4b})
	m.wantDivert(t, "before a snapshot", 200)
	mustSync(t, a.Steerer, isolatedPod)
	m.wantDivert(t, "with a snapshot", 300)
}
