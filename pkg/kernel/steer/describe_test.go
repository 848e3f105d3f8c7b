package steer

import (
	"net/netip"
	"strings"
	"testing"

	"sigs.k8s.io/knftables"
)

// A description has what the kernel has: the sets with their elements, also if the table answers denied
// packets, and no more than names of another layout.
func TestDescribe(t *testing.T) {
	s, fake := newFake(t, nil)
	describe := func() string {
		t.Helper()
		var out strings.Builder
		if err := s.Describe(t.Context(), &out); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	if got := describe(); !strings.HasPrefix(got, "table inet netpol-agent: absent") {
		t.Errorf("without a table:\n%s", got)
	}
	mustSync(t, s, Sets{Ingress: []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")}, EgressRanges: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}})
	got := describe()
	for _, want := range []string{"netpol-agent: ours, ", "Queue:109", "\nset ingress-v4: 10.0.0.2\n", "\nset ingress-v6: fd00::2\n", "\nset egress-ranges-v4: 10.0.0.0/24\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	tx := fake.NewTransaction()
	tx.Add(&knftables.Chain{Name: "theirs"})
	if err := fake.Run(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	if got := describe(); !strings.Contains(got, "incompatible") || !strings.Contains(got, " theirs") || strings.Contains(got, "10.0.0.2") {
		t.Errorf("a table of another layout:\n%s", got)
	}
}
