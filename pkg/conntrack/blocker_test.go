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

	"sigs.k8s.io/kube-network-policies/pkg/packet"
)

const others = ^DefaultMark

func TestConfigNamesItsFaults(t *testing.T) {
	for _, tt := range []struct {
		cfg  Config
		want string
	}{
		{Config{Mark: 1, Registerer: prometheus.NewRegistry()}, ""},
		{Config{Registerer: prometheus.NewRegistry()}, "Mark 0x0 is not exactly one bit"},
		{Config{Mark: 3}, "Mark 0x3 is not exactly one bit\nRegisterer is nil"},
	} {
		got := ""
		if err := tt.cfg.Validate(); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%+v: got %q, want %q", tt.cfg, got, tt.want)
		}
	}
	if _, err := New(Config{}); err == nil || !strings.HasPrefix(err.Error(), "conntrack: Mark") {
		t.Errorf("New: %v", err)
	}
}

// TestMarksFollowTheJudge has three connections that start with marks of others
// and their own bit in every way.
func TestMarksFollowTheJudge(t *testing.T) {
	for _, tt := range []struct {
		verdict Verdict
		before  uint32
		want    uint32
	}{
		{Block, 0, DefaultMark},
		{Block, others, ^uint32(0)},
		{Block, DefaultMark, DefaultMark},
		{Block, ^uint32(0), ^uint32(0)},
		{Keep, others, others},
		{Keep, ^uint32(0), ^uint32(0)},
		{Unblock, others, others},
		{Unblock, DefaultMark, 0},
		{Unblock, ^uint32(0), others},
	} {
		c, f := newFake(t)
		f.add(packet.TCP, "10.0.0.1:40000", "10.0.0.2:80").mark = tt.before
		if err := c.pass(testContext(t), always(tt.verdict, nil)); err != nil {
			t.Fatal(err)
		}
		if got := f.marks()[0]; got != tt.want {
			t.Errorf("verdict %d on mark %#x: %#x, want %#x", tt.verdict, tt.before, got, tt.want)
		}
		wantWrites := 0
		if tt.before != tt.want {
			wantWrites = 1
		}
		if f.writes != wantWrites {
			t.Errorf("verdict %d on mark %#x: %d writes, want %d", tt.verdict, tt.before, f.writes, wantWrites)
		}
	}
}

func TestOnlyWhatDiffersIsWritten(t *testing.T) {
	c, f := newFake(t)
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
		{"nothing is denied", deny(), []uint32{0, 0, 0}, 0},
		{"two are", deny(1, 3), []uint32{DefaultMark, 0, DefaultMark}, 2},
		{"the same again", deny(1, 3), []uint32{DefaultMark, 0, DefaultMark}, 0},
		{"one less, one more", deny(2, 3), []uint32{0, DefaultMark, DefaultMark}, 2},
		{"nobody can tell", always(Keep, nil), []uint32{0, DefaultMark, DefaultMark}, 0},
		{"nothing is denied", deny(), []uint32{0, 0, 0}, 2},
	} {
		f.writes = 0
		if err := c.pass(testContext(t), tt.evaluate); err != nil {
			t.Fatal(err)
		}
		if got := f.marks(); !slices.Equal(got, tt.wantMarks) || f.writes != tt.wantWrites {
			t.Errorf("%s: marks %#x with %d writes, want %#x with %d", tt.name, got, f.writes, tt.wantMarks, tt.wantWrites)
		}
	}
	if blocked, unblocked := testutil.ToFloat64(c.metrics.blocked), testutil.ToFloat64(c.metrics.unblocked); blocked != 3 || unblocked != 3 {
		t.Errorf("%v were blocked and %v unblocked, want 3 and 3", blocked, unblocked)
	}
	if f.closed != f.opened {
		t.Errorf("opened %d times and closed %d times", f.opened, f.closed)
	}
}

func TestTheJudgeIsAskedAboutTheFirstPacket(t *testing.T) {
	for _, tt := range []struct {
		name     string
		proto    packet.Proto
		src, dst string
		want     string // empty: not asked
	}{
		{"TCP", packet.TCP, "10.0.0.1:40000", "10.0.0.2:80", "TCP 10.0.0.1:40000 -> 10.0.0.2:80"},
		{"IPv6", packet.UDP, "[fd00::1]:5000", "[fd00::2]:53", "UDP [fd00::1]:5000 -> [fd00::2]:53"},
		{"SCTP", packet.SCTP, "10.0.0.1:40000", "10.0.0.2:80", "SCTP 10.0.0.1:40000 -> 10.0.0.2:80"},
		{"SCTP without ports", packet.SCTP, "10.0.0.1", "10.0.0.2", ""},
		{"ICMP", packet.ICMP, "10.0.0.1", "10.0.0.2", "ICMP 10.0.0.1 -> 10.0.0.2"},
		{"ports that policy does not know", 136, "10.0.0.1:7", "10.0.0.2:7", "protocol 136 10.0.0.1 -> 10.0.0.2"},
		{"two families", packet.TCP, "10.0.0.1:40000", "[fd00::2]:80", ""},
		{"no addresses", packet.TCP, "[::]:0", "10.0.0.1:1", ""},
	} {
		c, f := newFake(t)
		f.add(tt.proto, tt.src, tt.dst)
		var asked []string
		if err := c.pass(testContext(t), always(Block, &asked)); err != nil {
			t.Fatal(err)
		}
		want := []string{tt.want}
		if tt.want == "" {
			want = nil
		}
		if !slices.Equal(asked, want) {
			t.Errorf("%s: asked about %q, want %q", tt.name, asked, want)
		}
		if cut := f.marks()[0] != 0; cut != (tt.want != "") {
			t.Errorf("%s: cut is %v", tt.name, cut)
		}
	}
}

// TestWhatTheOwnNodeOpensIsNeverCut also finds entries that were cut before the
// node got the address.
func TestWhatTheOwnNodeOpensIsNeverCut(t *testing.T) {
	c, f := newFake(t)
	for _, ends := range [][2]string{
		{"192.0.2.1:40000", "10.0.0.2:80"},
		{"[2001:db8::1]:40000", "[fd00::2]:80"},
		{"127.0.0.53:40000", "10.0.0.2:80"},
		{"127.0.0.1:40000", "127.0.0.1:80"},
	} {
		f.add(packet.TCP, ends[0], ends[1])
		f.add(packet.TCP, ends[0], ends[1]).mark = DefaultMark
	}
	var asked []string
	if err := c.pass(testContext(t), always(Block, &asked)); err != nil || len(asked) > 0 {
		t.Fatalf("%v; asked about %q", err, asked)
	}
	for i, mark := range f.marks() {
		if mark != 0 {
			t.Errorf("connection %d has mark %#x, want 0", i, mark)
		}
	}
	c.nodeAddrs = func() (addrSet, error) { return nil, errors.New("no answer") }
	if err := c.pass(testContext(t), always(Block, nil)); err == nil || err.Error() != "list the node's addresses: no answer" {
		t.Errorf("without the node's addresses: %v", err)
	}
}

func TestTheJudgeIsToldWhatIsForTheOwnNode(t *testing.T) {
	c, f := newFake(t)
	for _, dst := range []string{"192.0.2.1:10250", "192.0.2.2:10250", "[2001:db8::1]:443"} {
		f.add(packet.TCP, map[bool]string{false: "10.0.0.2:40000", true: "[fd00::2]:40000"}[dst[0] == '['], dst)
	}
	var asked []string
	if err := c.pass(testContext(t), always(Block, &asked)); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"TCP 10.0.0.2:40000 -> 192.0.2.1:10250 (the node)",
		"TCP 10.0.0.2:40000 -> 192.0.2.2:10250",
		"TCP [fd00::2]:40000 -> [2001:db8::1]:443 (the node)",
	}
	if !slices.Equal(asked, want) {
		t.Errorf("asked about %q, want %q", asked, want)
	}
	if got := f.marks(); !slices.Equal(got, []uint32{DefaultMark, DefaultMark, DefaultMark}) {
		t.Errorf("marks %#x, want all cut", got)
	}
}

func TestAnAnnouncedConnectionIsLeftAlone(t *testing.T) {
	c, f := newFake(t)
	f.add(packet.TCP, "10.0.0.1:40000", "10.0.0.2:80").expected = true
	if err := c.pass(testContext(t), always(Block, nil)); err != nil || f.marks()[0] != 0 {
		t.Errorf("mark %#x, %v", f.marks()[0], err)
	}
}

func TestAConnectionThatEndsMeanwhileIsNoError(t *testing.T) {
	c, f := newFake(t)
	f.add(packet.TCP, "10.0.0.1:1", "10.0.0.2:80")
	f.add(packet.TCP, "10.0.0.1:2", "10.0.0.2:80")
	f.onChange = func(f *fakeTable) {
		f.rows = slices.DeleteFunc(f.rows, func(e entry) bool { return e.original.port == 1 })
	}
	if err := c.pass(testContext(t), always(Block, nil)); err != nil {
		t.Error(err)
	}
	if got := f.marks(); !slices.Equal(got, []uint32{DefaultMark}) {
		t.Errorf("marks %#x", got)
	}
	if n := testutil.ToFloat64(c.metrics.blocked); n != 1 {
		t.Errorf("%v were cut, want 1", n)
	}
}

func TestFaultsLeaveTheRestServed(t *testing.T) {
	c, f := newFake(t)
	f.add(packet.TCP, "10.0.0.1:1", "10.0.0.2:80")
	f.add(packet.TCP, "10.0.0.1:2", "10.0.0.2:80")
	f.broken = errors.New("interrupted")
	panics := func(p packet.Packet, _ bool) Verdict {
		if p.Src.Port() == 1 {
			panic("defect")
		}
		return Block
	}
	err := c.pass(testContext(t), panics)
	if err == nil || !strings.HasPrefix(err.Error(), "evaluate TCP 10.0.0.1:1 -> 10.0.0.2:80: panic: defect") || !strings.HasSuffix(err.Error(), "(and 1 more errors)") {
		t.Errorf("got %v", err)
	}
	if got := f.marks(); !slices.Equal(got, []uint32{0, DefaultMark}) {
		t.Errorf("marks %#x", got)
	}
	f.broken, f.refused = nil, errors.New("not permitted")
	if err := c.pass(testContext(t), always(Unblock, nil)); err == nil || err.Error() != "not permitted" {
		t.Errorf("got %v", err)
	}
}

// TestPassesAreBounded counts the passes of a Blocker at work.
func TestPassesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := newFake(t)
		f.add(packet.TCP, "10.0.0.1:1", "10.0.0.2:80")
		_, ctx := ktesting.NewTestContext(t)
		ended := make(chan error)
		ctx, cancel := context.WithCancel(ctx)
		go func() { ended <- c.Run(ctx) }()
		expect := func(when string, after time.Duration, passes int, mark uint32) {
			t.Helper()
			time.Sleep(after) // of the bubble's clock
			synctest.Wait()
			f.edit(func() {
				if got := f.rows[0].mark; f.opened != passes || got != mark {
					t.Errorf("%s: %d passes and mark %#x, want %d and %#x", when, f.opened, got, passes, mark)
				}
			})
		}
		expect("without a judge", time.Hour, 0, 0)
		c.Set(always(Block, nil))
		expect("at once", 0, 1, DefaultMark)
		expect("a second look", minInterval, 2, DefaultMark)
		expect("and no third", maxInterval-time.Second, 2, DefaultMark)
		f.edit(func() { f.rows[0].mark = 0 })
		expect("drift", time.Second, 3, DefaultMark)
		time.Sleep(minInterval)
		for range 100 {
			c.Set(always(Keep, nil))
			c.Set(always(Unblock, nil))
			time.Sleep(minInterval / 100)
		}
		expect("a flood of judges", 0, 5, 0)
		f.edit(func() { f.refused, f.rows[0].mark = errors.New("not permitted"), DefaultMark })
		expect("the last of them", 2*minInterval, 7, DefaultMark)
		f.edit(func() { f.refused = nil })
		expect("again after an error", 2*minInterval, 8, 0)
		f.edit(func() { f.rows[0].mark = DefaultMark })
		expect("nothing is new", 2*minInterval, 8, DefaultMark)
		c.Recheck()
		expect("asked to look again", 0, 9, 0)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestMetricsAreClean(t *testing.T) {
	reg := prometheus.NewRegistry()
	c, err := New(Config{Mark: DefaultMark, Registerer: reg})
	if err != nil {
		t.Fatal(err)
	}
	c.metrics.passed(time.Second, nil)
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}
