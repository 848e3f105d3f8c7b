package steer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft"
)

func remembering(c *Config) {
	c.Parts = []Part{&Remembered{For: 30 * time.Second}}
}

// verdictsOf returns the remembered verdicts in the table of s.
func verdictsOf(s *Steerer) *Remembered { return s.cfg.Parts[0].(*Remembered) }

func rememberingOneQueue(c *Config) { remembering(c); c.Queues = 1 }

// classes returns n classes, alternately of both families.
func classes(n int) []packet.Class {
	all := make([]packet.Class, n)
	for i := range all {
		c := packet.Class{Src: v4, Dst: netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}), Proto: packet.TCP, Port: uint16(i)}
		if i%2 == 1 {
			to := v6.As16()
			binary.BigEndian.PutUint32(to[12:], uint32(i))
			c.Src, c.Dst, c.Proto = v6, netip.AddrFrom16(to), packet.UDP
		}
		all[i] = c
	}
	return all
}

// remembered returns the verdicts in the kernel without their timeouts.
func remembered(t *testing.T, s *Steerer) map[packet.Class]RememberedVerdict {
	t.Helper()
	all := make(map[packet.Class]RememberedVerdict)
	if err := verdictsOf(s).All(t.Context(), func(v RememberedVerdict) {
		v.Expires = 0
		all[v.Class] = v
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// mustAllow adds allowed classes with nft, like packets.
func mustAllow(t *testing.T, all ...packet.Class) {
	t.Helper()
	var script strings.Builder
	for _, c := range all {
		k := verdictKey{c, false}
		fmt.Fprintf(&script, "add element inet %s %s { %s counter timeout 1h }\n", TableName, k.set(), strings.Join(k.fakeElement().Key, " . "))
	}
	mustShell(t, "nft -f - <<'E'\n"+script.String()+"E")
}

func mustDeny(t *testing.T, s *Steerer, timeout time.Duration, all ...packet.Class) {
	t.Helper()
	if err := verdictsOf(s).Deny(t.Context(), all, timeout); err != nil {
		t.Fatal(err)
	}
}

func TestKernelRemembersAndForgetsVerdicts(t *testing.T) {
	newNode(t)
	s := newReal(t, rememberingOneQueue)
	mustSync(t, s, Sets{})
	all := classes(10)
	mustAllow(t, all[:6]...)
	mustDeny(t, s, time.Hour, all[4:]...)
	mustDeny(t, s, time.Minute, all[4:]...) // already denied
	if err := verdictsOf(s).Forget(t.Context(), all[:2], all[8:]); err != nil {
		t.Fatal(err)
	}
	want := make(map[verdictKey]int)
	for _, c := range all[2:6] {
		want[verdictKey{c, false}] = 1
	}
	for _, c := range all[4:8] {
		want[verdictKey{c, true}] = 1
	}
	// While the kernel resizes the set, a listing may lack elements or have them twice.
	await(t, func() bool {
		got := make(map[verdictKey]int)
		if err := verdictsOf(s).All(t.Context(), func(v RememberedVerdict) {
			got[verdictKey{v.Class, v.Denied}]++
			if v.Packets != 0 || v.Expires <= 0 || v.Expires > time.Hour {
				t.Errorf("%+v", v)
			}
		}); err != nil {
			t.Fatal(err)
		}
		return maps.Equal(got, want)
	})
	if err := verdictsOf(s).ForgetAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := remembered(t, s); len(got) > 0 {
		t.Errorf("after ForgetAllVerdicts: %v", got)
	}
}

// Expired and missing elements are ignored, however many there are, and whether or not the kernel
// supports NFT_MSG_DESTROYSETELEM.
func TestKernelForgetsWhatDoesNotExist(t *testing.T) {
	newNode(t)
	s := newReal(t, rememberingOneQueue)
	mustSync(t, s, Sets{})
	for _, noDestroy := range []bool{false, true} {
		s.verdicts.(*netlinkVerdicts).noDestroy = noDestroy
		all := classes(10_000)
		var there []packet.Class
		for i, c := range all {
			if i%3 == 0 {
				there = append(there, c)
			}
		}
		mustDeny(t, s, time.Hour, there...)
		// While the kernel resizes the set, a listing may lack elements.
		await(t, func() bool { return len(remembered(t, s)) == len(there) })
		kept := there[len(there)-1]
		if err := verdictsOf(s).Forget(t.Context(), all, all[:9999]); err != nil {
			t.Fatal(err)
		}
		await(t, func() bool { got := remembered(t, s); return len(got) == 1 && got[kept].Denied })
		if err := verdictsOf(s).Forget(t.Context(), all, all); err != nil {
			t.Fatal(err)
		}
	}
}

func TestKernelFullSetIsNoError(t *testing.T) {
	newNode(t)
	s := newReal(t, rememberingOneQueue)
	mustSync(t, s, Sets{})
	mustDeny(t, s, time.Hour, classes(2*deniedSize+100)...)
	await(t, func() bool { return len(remembered(t, s)) == 2*deniedSize })
}

// Writes of verdicts are recognized by the port in the notification.
func TestKernelWritesOfVerdictsAreNoExternalChanges(t *testing.T) {
	newNode(t)
	s := newReal(t, rememberingOneQueue)
	startRun(t, s, Sets{})
	await(t, func() bool { return s.Healthy() == nil })
	all := classes(100)
	for i := range all {
		s.Set(Sets{Ingress: []netip.Addr{all[i].Dst}})
		mustDeny(t, s, time.Hour, all[i])
		if i%2 == 0 {
			if err := verdictsOf(s).Forget(t.Context(), nil, all[i:i+1]); err != nil {
				t.Fatal(err)
			}
		}
	}
	await(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.applied == s.desired
	})
	await(t, func() bool { return len(remembered(t, s)) == len(all)/2 })
	// An external commit ends the sequence, so that all earlier notifications have been counted.
	mustShell(t, "nft 'add chain inet netpol-agent theirs; delete chain inet netpol-agent theirs'")
	await(t, func() bool { return s.externalChanges(byNotification) > 0 && s.Healthy() == nil })
	if n := s.externalChanges(byNotification); n != 1 {
		t.Errorf("%v external commits, want 1", n)
	}
	if n := testutil.ToFloat64(s.metrics.repairs); n != 0 {
		t.Errorf("%v repairs", n)
	}
}

// Verdicts of other processes and of an earlier agent are flushed.
func TestKernelVerdictsOfOthersAreFlushed(t *testing.T) {
	newNode(t)
	s := newReal(t, rememberingOneQueue)
	startRun(t, s, Sets{})
	await(t, func() bool { return s.Healthy() == nil })
	all := classes(2)
	for i := range 5 {
		mustAllow(t, all...)
		await(t, func() bool { return s.externalChanges(byNotification) == float64(i+1) && s.Healthy() == nil })
		if got := remembered(t, s); len(got) > 0 {
			t.Errorf("left: %v", got)
		}
	}
	if n := testutil.ToFloat64(s.metrics.repairs); n != 0 {
		t.Errorf("%v repairs", n)
	}
}

// disturbed is a table in which another process commits after each write.
type disturbed struct {
	table
	commit func()
}

func (d disturbed) RunAt(ctx context.Context, tx *nft.Transaction, generation uint32) error {
	defer d.commit()
	return d.table.RunAt(ctx, tx, generation)
}

// A flush of empty sets does not start a generation. A commit of another process must not be taken for
// our own.
func TestKernelFlushOfEmptySetsIsNoCommit(t *testing.T) {
	n := newNode(t)
	s := newReal(t, rememberingOneQueue)
	mustSync(t, s, isolated(n.b))
	s.table = disturbed{s.table, sync.OnceFunc(func() {
		mustShell(t, "nft delete element inet netpol-agent ingress-v4 { 10.244.2.2 }")
	})}
	s.flush = true
	for range 2 {
		s.verified = time.Time{} // as if the interval had passed
		mustSync(t, s, isolated(n.b))
	}
	if h, err := s.read(t.Context()); err != nil || !equalContents(h.sets, isolated(n.b).contents()) {
		t.Errorf("got %v, %v", h, err)
	}
}

func TestKernelStartFlushesVerdicts(t *testing.T) {
	newNode(t)
	before := newReal(t, rememberingOneQueue)
	mustSync(t, before, Sets{})
	all := classes(4)
	mustAllow(t, all[:2]...)
	mustDeny(t, before, time.Hour, all[2:]...)
	s := newReal(t, rememberingOneQueue)
	if err := s.sync(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if got := remembered(t, s); len(got) > 0 {
		t.Errorf("left: %v", got)
	}
}

func TestKernelForgetsInTableThatIsGone(t *testing.T) {
	newNode(t)
	s := newReal(t, rememberingOneQueue)
	mustSync(t, s, Sets{})
	mustShell(t, "nft flush ruleset")
	err := verdictsOf(s).Forget(t.Context(), classes(2), nil)
	var want error = unix.ENOENT
	if s.verdicts.(*netlinkVerdicts).noDestroy {
		want = nil // the kernel gives the same answer for expired verdicts
	}
	if !errors.Is(err, want) {
		t.Errorf("error %v, want %v", err, want)
	}
}
