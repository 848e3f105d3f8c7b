package conntrack

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/klog/v2/ktesting"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

const (
	testMark  uint32 = 0x800
	otherBits        = ^testMark
)

func TestConfigValidate(t *testing.T) {
	for _, tt := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"valid", Config{Mark: 1, Registerer: prometheus.NewRegistry()}, ""},
		{"no mark", Config{Registerer: prometheus.NewRegistry()}, "Mark 0x0 is not exactly one bit"},
		{"two bits and no registerer", Config{Mark: 3}, "Mark 0x3 is not exactly one bit\nRegisterer is nil"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if err := tt.cfg.Validate(); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	if _, err := New(Config{}); err == nil || !strings.HasPrefix(err.Error(), "conntrack: Mark") {
		t.Errorf("New: %v", err)
	}
}

// A pass sets and clears its own bit, and preserves all others, for every verdict.
func TestPassSetsOneBit(t *testing.T) {
	for _, tt := range []struct {
		name    string
		verdict Verdict
		before  uint32
		want    uint32
	}{
		{"block, no bit set", Block, 0, testMark},
		{"block, other bits set", Block, otherBits, ^uint32(0)},
		{"block, already blocked", Block, testMark, testMark},
		{"block, all bits set", Block, ^uint32(0), ^uint32(0)},
		{"keep, other bits set", Keep, otherBits, otherBits},
		{"keep, all bits set", Keep, ^uint32(0), ^uint32(0)},
		{"unblock, other bits set", Unblock, otherBits, otherBits},
		{"unblock, blocked", Unblock, testMark, 0},
		{"unblock, all bits set", Unblock, ^uint32(0), otherBits},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, f := newFake(t)
			f.add(packet.TCP, "10.0.0.1:40000", "10.0.0.2:80").mark = tt.before
			if err := runPass(t, b, always(tt.verdict, nil)); err != nil {
				t.Fatal(err)
			}
			if got := f.marks()[0]; got != tt.want {
				t.Errorf("mark %#x became %#x, want %#x", tt.before, got, tt.want)
			}
			wantWrites := 0
			if tt.before != tt.want {
				wantWrites = 1
			}
			if f.writes != wantWrites {
				t.Errorf("%d writes, want %d", f.writes, wantWrites)
			}
		})
	}
}

// Flows to broadcast and multicast addresses are blocked if they are denied as flows to the node or
// as flows to the address.
func TestFlowsToManyAreBlockedAtTheNode(t *testing.T) {
	for _, toNode := range []bool{false, true} {
		for dst, want := range map[string]bool{
			"255.255.255.255:53": toNode, // for the node alone
			"10.0.0.2:53":        !toNode,
			"224.0.0.251:53":     true,
			"[ff02::fb]:53":      true,
		} {
			b, f := newFake(t)
			src := "10.0.0.1:40000"
			if dst[0] == '[' {
				src = "[fd00::1]:40000"
			}
			f.add(packet.UDP, src, dst)
			err := runPass(t, b, func(_ packet.Packet, toHost bool) Verdict {
				if toHost == toNode {
					return Block
				}
				return Unblock
			})
			if got := f.marks()[0] == testMark; err != nil || got != want {
				t.Errorf("denied for the node %v, to %s: blocked %v, want %v; %v", toNode, dst, got, want, err)
			}
		}
	}
}

func TestPassWritesOnlyChanges(t *testing.T) {
	b, f := newFake(t)
	for _, dst := range []string{"10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"} {
		f.add(packet.TCP, "10.0.1.1:40000", dst)
	}
	deny := func(ports ...uint16) Evaluator {
		return func(p packet.Packet, _ bool) Verdict {
			if slices.Contains(ports, uint16(p.Dst.Addr().As4()[3])) {
				return Block
			}
			return Unblock
		}
	}
	for _, tt := range []struct {
		name       string
		evaluate   Evaluator
		wantMarks  []uint32
		wantWrites int
	}{
		{"none is denied", deny(), []uint32{0, 0, 0}, 0},
		{"two are denied", deny(1, 3), []uint32{testMark, 0, testMark}, 2},
		{"the same two", deny(1, 3), []uint32{testMark, 0, testMark}, 0},
		{"one of them and a new one", deny(2, 3), []uint32{0, testMark, testMark}, 2},
		{"undecided", always(Keep, nil), []uint32{0, testMark, testMark}, 0},
		{"none is denied any more", deny(), []uint32{0, 0, 0}, 2},
	} { // consecutive steps
		f.writes = 0
		if err := runPass(t, b, tt.evaluate); err != nil {
			t.Fatal(err)
		}
		if got := f.marks(); !slices.Equal(got, tt.wantMarks) || f.writes != tt.wantWrites {
			t.Errorf("%s: marks %#x with %d writes, want %#x with %d", tt.name, got, f.writes, tt.wantMarks, tt.wantWrites)
		}
	}
	if blocked := testutil.ToFloat64(b.metrics.blocks(false)); blocked != 3 {
		t.Errorf("%v were blocked, want 3", blocked)
	}
	if f.closed != f.opened {
		t.Errorf("opened %d times and closed %d times", f.opened, f.closed)
	}
}

func TestPassEvaluatesFirstPackets(t *testing.T) {
	for _, tt := range []struct {
		name     string
		proto    packet.Proto
		src, dst string
		want     string // empty: not evaluated
	}{
		{"TCP", packet.TCP, "10.0.0.1:40000", "10.0.0.2:80", "TCP 10.0.0.1:40000 -> 10.0.0.2:80"},
		{"IPv6", packet.UDP, "[fd00::1]:5000", "[fd00::2]:53", "UDP [fd00::1]:5000 -> [fd00::2]:53"},
		{"SCTP", packet.SCTP, "10.0.0.1:40000", "10.0.0.2:80", "SCTP 10.0.0.1:40000 -> 10.0.0.2:80"},
		{"SCTP without ports", packet.SCTP, "10.0.0.1", "10.0.0.2", ""},
		{"ICMP", packet.ICMP, "10.0.0.1", "10.0.0.2", "ICMP 10.0.0.1 -> 10.0.0.2"},
		{"ports that policies do not know", 136, "10.0.0.1:7", "10.0.0.2:7", "protocol 136 10.0.0.1 -> 10.0.0.2"},
		{"two families", packet.TCP, "10.0.0.1:40000", "[fd00::2]:80", ""},
		{"no addresses", packet.TCP, "[::]:0", "10.0.0.1:1", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, f := newFake(t)
			f.add(tt.proto, tt.src, tt.dst)
			var evaluated []string
			if err := runPass(t, b, always(Block, &evaluated)); err != nil {
				t.Fatal(err)
			}
			var want []string
			if tt.want != "" {
				want = []string{tt.want}
			}
			if !slices.Equal(evaluated, want) {
				t.Errorf("evaluated %q, want %q", evaluated, want)
			}
			if blocked := f.marks()[0] != 0; blocked != (tt.want != "") {
				t.Errorf("blocked: %v", blocked)
			}
		})
	}
}

// Connections from the node's addresses are never blocked, and are unblocked if they were blocked
// before the node got the address.
func TestPassNeverBlocksTheNode(t *testing.T) {
	b, f := newFake(t)
	for _, ends := range [][2]string{
		{"192.0.2.1:40000", "10.0.0.2:80"},
		{"[2001:db8::1]:40000", "[fd00::2]:80"},
		{"127.0.0.53:40000", "10.0.0.2:80"},
		{"127.0.0.1:40000", "127.0.0.1:80"},
	} {
		f.add(packet.TCP, ends[0], ends[1])
		f.add(packet.TCP, ends[0], ends[1]).mark = testMark
	}
	var evaluated []string
	if err := runPass(t, b, always(Block, &evaluated)); err != nil || len(evaluated) > 0 {
		t.Fatalf("%v; evaluated %q", err, evaluated)
	}
	for i, mark := range f.marks() {
		if mark != 0 {
			t.Errorf("connection %d has mark %#x, want 0", i, mark)
		}
	}
	b.nodeAddrs = func() (addrSet, error) { return nil, errors.New("no answer") }
	if err := runPass(t, b, always(Block, nil)); err == nil || err.Error() != "list the node's addresses: no answer" {
		t.Errorf("without the node's addresses: %v", err)
	}
}

func TestPassReportsConnectionsToTheNode(t *testing.T) {
	b, f := newFake(t)
	for _, dst := range []string{"192.0.2.1:10250", "192.0.2.2:10250", "[2001:db8::1]:443"} {
		f.add(packet.TCP, map[bool]string{false: "10.0.0.2:40000", true: "[fd00::2]:40000"}[dst[0] == '['], dst)
	}
	var evaluated []string
	if err := runPass(t, b, always(Block, &evaluated)); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"TCP 10.0.0.2:40000 -> 192.0.2.1:10250 (the node)",
		"TCP 10.0.0.2:40000 -> 192.0.2.2:10250",
		"TCP [fd00::2]:40000 -> [2001:db8::1]:443 (the node)",
	}
	if !slices.Equal(evaluated, want) {
		t.Errorf("evaluated %q, want %q", evaluated, want)
	}
	if got := f.marks(); !slices.Equal(got, []uint32{testMark, testMark, testMark}) {
		t.Errorf("marks %#x, want all blocked", got)
	}
}

// A connection that a helper expects has its own ports, so it is evaluated independently of the
// connection that it was derived from.
func TestPassBlocksExpectedConnections(t *testing.T) {
	b, f := newFake(t)
	f.add(packet.TCP, "10.0.0.1:40000", "10.0.0.2:80").status = statusExpected
	if err := runPass(t, b, always(Block, nil)); err != nil || f.marks()[0] != testMark {
		t.Errorf("mark %#x, %v", f.marks()[0], err)
	}
}

// The kernel tracks a connection that it picked up with a packet of the server in the opposite
// direction. Such a connection is evaluated in both directions, and one seen from the start in one.
func TestPickedUpConnections(t *testing.T) {
	blockFrom := func(src string) Evaluator {
		return func(p packet.Packet, _ bool) Verdict {
			if p.Src.Addr().String() == src {
				return Block
			}
			return Unblock
		}
	}
	for _, tt := range []struct {
		name     string
		src, dst string
		evaluate Evaluator
		want     []uint32 // picked up, not picked up
	}{
		{"allowed", "10.0.0.2:80", "10.0.0.1:40000", always(Unblock, nil), []uint32{0, 0}},
		{"the client is denied", "10.0.0.2:80", "10.0.0.1:40000", blockFrom("10.0.0.1"), []uint32{testMark, 0}},
		{"the server is denied", "10.0.0.2:80", "10.0.0.1:40000", blockFrom("10.0.0.2"), []uint32{testMark, testMark}},
		{"IPv6", "[fd00::2]:80", "[fd00::1]:40000", blockFrom("fd00::1"), []uint32{testMark, 0}},
		{"of the node, which may always connect", "192.0.2.1:40000", "10.0.0.2:80", blockFrom("10.0.0.2"), []uint32{0, 0}},
		{"to the node", "10.0.0.2:80", "192.0.2.1:40000", blockFrom("10.0.0.2"), []uint32{testMark, testMark}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, f := newFake(t)
			f.add(packet.TCP, tt.src, tt.dst).pickedUp = true
			f.add(packet.TCP, tt.src, tt.dst)
			for range 2 {
				if err := runPass(t, b, tt.evaluate); err != nil {
					t.Fatal(err)
				}
				if got := f.marks(); !slices.Equal(got, tt.want) {
					t.Errorf("marks %#x, want %#x", got, tt.want)
				}
			}
			if err := runPass(t, b, always(Unblock, nil)); err != nil || !slices.Equal(f.marks(), []uint32{0, 0}) {
				t.Errorf("marks %#x after they are allowed, %v", f.marks(), err)
			}
		})
	}
}

func TestPassToleratesConnectionsThatEnd(t *testing.T) {
	b, f := newFake(t)
	f.add(packet.TCP, "10.0.0.1:1", "10.0.0.2:80")
	f.add(packet.TCP, "10.0.0.1:2", "10.0.0.2:80")
	f.onChange = func(f *fakeTable) {
		f.rows = slices.DeleteFunc(f.rows, func(e entry) bool { return e.original.port == 1 })
	}
	if err := runPass(t, b, always(Block, nil)); err != nil {
		t.Error(err)
	}
	if got := f.marks(); !slices.Equal(got, []uint32{testMark}) {
		t.Errorf("marks %#x", got)
	}
	if n := testutil.ToFloat64(b.metrics.blocks(false)); n != 1 {
		t.Errorf("%v were blocked, want 1", n)
	}
}

func TestPassContinuesAfterErrors(t *testing.T) {
	b, f := newFake(t)
	f.add(packet.TCP, "10.0.0.1:1", "10.0.0.2:80")
	f.add(packet.TCP, "10.0.0.1:2", "10.0.0.2:80")
	f.broken = errors.New("interrupted")
	panics := func(p packet.Packet, _ bool) Verdict {
		if p.Src.Port() == 1 {
			panic("defect")
		}
		return Block
	}
	err := runPass(t, b, panics)
	if err == nil || !strings.HasPrefix(err.Error(), "evaluate TCP 10.0.0.1:1 -> 10.0.0.2:80: panic: defect") || !strings.HasSuffix(err.Error(), "(and 1 more errors)") {
		t.Errorf("got %v", err)
	}
	if got := f.marks(); !slices.Equal(got, []uint32{0, testMark}) {
		t.Errorf("marks %#x", got)
	}
	f.broken, f.refused = nil, errors.New("not permitted")
	if err := runPass(t, b, always(Unblock, nil)); err == nil || err.Error() != "not permitted" {
		t.Errorf("got %v", err)
	}
}

// Passes have a least interval, however many changes and rechecks there are.
func TestRunBoundsPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, f := newFake(t)
		f.add(packet.TCP, "10.0.0.1:1", "10.0.0.2:80")
		_, ctx := ktesting.NewTestContext(t)
		ended := make(chan error)
		ctx, cancel := context.WithCancel(ctx)
		go func() { ended <- b.Run(ctx) }()
		expect := func(when string, after time.Duration, passes int, mark uint32) {
			t.Helper()
			time.Sleep(after) // by the bubble's clock
			synctest.Wait()
			f.edit(func() {
				if got := f.rows[0].mark; f.dumps != passes || got != mark {
					t.Errorf("%s: %d passes and mark %#x, want %d and %#x", when, f.dumps, got, passes, mark)
				}
			})
		}
		b.Recheck()
		expect("without an evaluator", time.Hour, 0, 0)
		set := func(v Verdict) { b.Set(always(v, nil), Change{All: true}) }
		set(Block)
		expect("at once", 0, 1, testMark)
		expect("a second pass", minPassInterval, 2, testMark)
		expect("and no third", minDrift-time.Second, 2, testMark)
		f.edit(func() { f.rows[0].mark = 0 })
		expect("drift", time.Second, 3, testMark)
		time.Sleep(minPassInterval)
		set(Unblock)
		f.edit(func() { f.dumps = 3 })
		expect("a change", 0, 5, 0) // probes whether the kernel filters, and lists
		set(Keep)
		expect("nothing turns", time.Second, 5, 0)
		set(Block)
		expect("it turns", 0, 6, testMark)
		expect("listed again soon", soonAfter, 7, testMark)
		expect("and later", againAfter-soonAfter, 8, testMark)
		f.edit(func() { f.refused = errors.New("not permitted") })
		set(Unblock)
		expect("an error, and a pass with an error", time.Second, 10, testMark)
		f.edit(func() { f.refused = nil })
		expect("another pass", minPassInterval, 11, 0)
		expect("and one after it", minPassInterval, 12, 0)
		f.edit(func() { f.rows[0].mark = testMark })
		expect("nothing is new", minDrift-time.Second, 12, testMark)
		b.Recheck()
		expect("recheck", 0, 13, 0)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestBlockerMetricsLint(t *testing.T) {
	reg := prometheus.NewRegistry()
	b, err := New(Config{Mark: testMark, Registerer: reg})
	if err != nil {
		t.Fatal(err)
	}
	b.metrics.countPass(nil)
	if testutil.ToFloat64(b.metrics.lastSuccess) == 0 {
		t.Error("the last success is not exported")
	}
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}
