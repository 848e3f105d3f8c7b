package steer

import (
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// newReal returns a Steerer with one queue on the real kernel.
func newReal(t *testing.T, edit func(*Config)) *Steerer {
	t.Helper()
	caps, err := Probe(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	cfg := testConfig()
	cfg.Queues = 1
	if edit != nil {
		edit(&cfg)
	}
	s, err := New(cfg, caps)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// listTable returns the table as nft prints it.
func listTable(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("nft", "list", "table", "inet", TableName).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// counterValue returns the value of the counter of steered packets.
func counterValue(t *testing.T, s *Steerer) uint64 {
	t.Helper()
	packets, err := s.kernel.counters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return packets[steeredCounter]
}

func TestKernelReachesDesiredState(t *testing.T) {
	newNode(t)
	s := newReal(t, nil)
	r := rand.New(rand.NewPCG(1, 0))
	for i := range 30 {
		sets := randomSets(r)
		mustSync(t, s, sets)
		h, err := s.read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if want := sets.contents(); !equalContents(h.sets, want) {
			t.Fatalf("sets %d: got %v, want %v", i, h.sets, want)
		}
	}
}

func TestKernelSyncOf5000Elements(t *testing.T) {
	newNode(t)
	s := newReal(t, nil)
	var sets Sets
	for i := range 2_500 {
		hi, lo := byte(i>>8), byte(i)
		sets.Ingress = append(sets.Ingress, netip.AddrFrom4([4]byte{10, 1, hi, lo}))
		sets.Egress = append(sets.Egress, netip.AddrFrom16([16]byte{0xfd, 14: hi, 15: lo}))
	}
	mustSync(t, s, sets)
	h, err := s.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !equalContents(h.sets, sets.contents()) {
		t.Errorf("the kernel has %v", h.sets.sizes())
	}
	mustSync(t, s, Sets{})
}

func TestKernelRestartKeepsElements(t *testing.T) {
	n := newNode(t)
	sets := isolated(n.b)
	mustSync(t, newReal(t, nil), sets)
	s := newReal(t, nil)
	if err := s.sync(testContext(t)); err != nil {
		t.Fatal(err)
	}
	h, err := s.read(t.Context())
	if err != nil || !equalContents(h.sets, sets.contents()) {
		t.Errorf("after the restart: %v, %v, want %v", h, err, sets.contents())
	}
}

func TestKernelTamperedTableIsRepaired(t *testing.T) {
	n := newNode(t)
	s := newReal(t, nil)
	sets := isolated(n.b)
	sets.IngressRanges = prefixes("10.244.0.0/16")
	mustSync(t, s, sets)
	want := sortedChains(listTable(t))
	for _, script := range []string{
		"flush ruleset",
		"flush table inet netpol-agent",
		"flush chain inet netpol-agent divert",
		"insert rule inet netpol-agent select accept",
		"replace rule inet netpol-agent divert handle $DROP accept",
		"chain inet netpol-agent postrouting { policy drop; }",
		"add table inet netpol-agent { flags dormant; }",
		"delete chain inet netpol-agent postrouting; add chain inet netpol-agent postrouting",
		"delete chain inet netpol-agent input; add chain inet netpol-agent input { type filter hook forward priority 105; }",
		"flush chain inet netpol-agent postrouting-accepted; delete chain inet netpol-agent postrouting-accepted",
		"add set inet netpol-agent theirs { type mark; }",
		"add element inet netpol-agent egress-ranges-v4 { 10.0.0.1-10.0.0.9 }",
		"add element inet netpol-agent owners-v4 { 10.244.2.9 . 0 }",
		"delete element inet netpol-agent ingress-v4 { 10.244.2.2 }",
		"flush ruleset; add table inet netpol-agent; add chain inet netpol-agent postrouting",
	} {
		tamperedAndRepaired(t, s, script, want)
	}
	if err := exec.Command("nft", "--check", "add element inet netpol-agent ingress-v4 { * }").Run(); err == nil { // since Linux 5.13
		tamperedAndRepaired(t, s, "add element inet netpol-agent ingress-v4 { * }", want)
	}
}

// tamperedAndRepaired runs an nft script, and checks that the next sync restores the table.
func tamperedAndRepaired(t *testing.T, s *Steerer, script, want string) {
	t.Helper()
	script = strings.Replace(script, "$DROP", dropHandle(t), 1)
	mustShell(t, "nft '"+script+"'")
	s.verified = time.Time{} // as if the interval had passed
	if err := s.sync(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, sortedChains(listTable(t))); diff != "" {
		t.Errorf("after %q the table differs (-want +got):\n%s", script, diff)
	}
}

// sortedChains sorts the objects in a listing, because a chain that was added again comes last.
func sortedChains(table string) string {
	_, objects, _ := strings.Cut(strings.TrimSuffix(table, "\n}\n"), "{\n")
	all := strings.Split(objects, "\n\n")
	slices.Sort(all)
	return strings.Join(all, "\n\n")
}

// dropHandle returns the handle of the last rule in divertChain.
func dropHandle(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("nft", "-a", "list", "chain", "inet", TableName, divertChain).Output()
	if err != nil {
		t.Fatal(err)
	}
	_, handle, _ := strings.Cut(string(out), "drop # handle ")
	handle, _, _ = strings.Cut(handle, "\n")
	return handle
}

// If a table was removed without a notification, the next write is refused because of the generation,
// and the table is written again.
func TestKernelLostTableIsWrittenAgain(t *testing.T) {
	n := newNode(t)
	s := newReal(t, nil)
	mustSync(t, s, isolated(n.b))
	mustShell(t, "nft flush ruleset")
	mustSync(t, s, isolated(n.a))
	if h, err := s.read(t.Context()); err != nil || !equalContents(h.sets, isolated(n.a).contents()) {
		t.Errorf("got %v, %v", h, err)
	}
}

func TestKernelProbeAndCleanupLeaveNothing(t *testing.T) {
	n := newNode(t)
	caps, err := Probe(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("queue: %v, xtables: %v, SCTP: %v", caps.Queue, caps.XTables, caps.SCTPConntrack)
	mustSync(t, newReal(t, nil), isolated(n.b))
	for range 2 {
		if kept, _, err := Cleanup(testContext(t), func(uint16) bool { return false }); err != nil || kept != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("nft", "list", "ruleset").Output(); err != nil || len(out) > 0 {
			t.Errorf("left behind: %s (%v)", out, err)
		}
	}
}

func TestKernelMetricsReadCounter(t *testing.T) {
	newNode(t)
	reg := prometheus.NewRegistry()
	mustSync(t, newReal(t, func(c *Config) { c.Registerer = reg }), Sets{})
	if n, err := testutil.GatherAndCount(reg, "netpol_steered_packets_total"); n != 2 || err != nil {
		t.Errorf("%d samples, %v, want 2: packets to decide and to audit", n, err)
	}
}

func TestKernelReadsRanges(t *testing.T) {
	newNode(t)
	s := newReal(t, nil)
	sets := Sets{
		IngressRanges: prefixes("10.0.0.0/24", "10.0.1.0/24", "0.0.0.0/8", "255.255.255.0/24", "192.0.2.1/32", "fd00::/64", "fd00:0:0:1::/64", "ffff::/16"),
		EgressRanges:  prefixes("0.0.0.0/0", "::/0"),
	}
	mustSync(t, s, sets)
	h, err := s.read(t.Context())
	if err != nil || !equalContents(h.sets, sets.contents()) {
		t.Errorf("got %v, %v, want %v", h.sets, err, sets.contents())
	}
}
