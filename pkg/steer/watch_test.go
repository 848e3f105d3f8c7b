package steer

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"
)

// running is a Steerer that runs in a bubble.
type running struct {
	*Steerer
	fake     *knftables.Fake
	hang     *hanging
	repaired *int // how often Config.Repaired was called
}

// run starts a Steerer that has applied sets, and ends it with the test.
func run(t *testing.T, sets Sets) running {
	t.Helper()
	nft := &hanging{Fake: knftables.NewFake(knftables.InetFamily, TableName)}
	repaired := 0
	s := newOn(t, nft, func(c *Config) { c.Repaired = func() { repaired++ } })
	ctx, cancel := context.WithCancel(testContext(t))
	done := make(chan error, 1)
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	s.Set(sets)
	go func() { done <- s.Run(ctx) }()
	time.Sleep(time.Second)
	synctest.Wait()
	if err := s.Healthy(); err != nil {
		t.Fatal(err)
	}
	return running{s, nft.Fake, nft, &repaired}
}

// notify reports the last transaction of the fake.
func (r running) notify(t *testing.T, touched bool) {
	k := r.kernel.(*fakeKernel)
	generation, _ := k.generation(t.Context())
	k.notify <- commit{generation: generation, process: "flusher", pid: 7, touched: touched}
	synctest.Wait()
}

var isolatedPod = Sets{Ingress: []netip.Addr{v4}, Egress: []netip.Addr{v6}}

func TestExternalChangesAreRepairedAtOnce(t *testing.T) {
	for name, edit := range tamperings {
		if name == "odd element added" {
			continue // there are no ranges
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := run(t, isolatedPod)
				want := s.fake.Dump()
				tamper(t, s.fake, edit)
				began := time.Now()
				s.notify(t, true)
				if got := inOrder(s.fake.Dump()); got != inOrder(want) {
					t.Errorf("got\n%swant\n%s", got, want)
				}
				if took := time.Since(began); took > minInterval {
					t.Errorf("it took %v", took)
				}
				if err := s.Healthy(); err != nil {
					t.Error(err)
				}
				if n := testutil.ToFloat64(s.metrics.external.WithLabelValues(byNotification)); n != 1 {
					t.Errorf("%v changes counted", n)
				}
				if n := testutil.ToFloat64(s.metrics.repairs); n != 1 || *s.repaired != 1 {
					t.Errorf("%v repairs counted, %d reported", n, *s.repaired)
				}
			})
		})
	}
}

func TestUnhealthyUntilExternalChangeIsRepaired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, isolatedPod)
		s.hang.hang.Store(true)
		tamper(t, s.fake, tamperings["table deleted"])
		s.notify(t, true)
		if err := s.Healthy(); err == nil || !strings.Contains(err.Error(), "flusher, pid 7") {
			t.Errorf("healthy: %v", err)
		}
		time.Sleep(syncTimeout)
		s.hang.hang.Store(false)
		time.Sleep(retryInterval)
		synctest.Wait()
		if err := s.Healthy(); err != nil || s.fake.Table == nil {
			t.Errorf("healthy: %v, table %v", err, s.fake.Table)
		}
	})
}

func TestOwnAndUnrelatedCommitsAreIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, isolatedPod)
		s.Set(Sets{Ingress: []netip.Addr{v4b}})
		synctest.Wait()
		s.notify(t, true) // the commit of Set
		tamper(t, s.fake, tamperings["element added"])
		s.notify(t, false) // reported as of another table
		if _, ok := fakeContents(s.fake)["ingress-v4"][element{prefix: netip.MustParsePrefix("192.0.2.9/32")}]; !ok {
			t.Error("the table was verified")
		}
		if n := testutil.ToFloat64(s.metrics.external.WithLabelValues(byNotification)); n != 0 {
			t.Errorf("%v external changes counted", n)
		}
		time.Sleep(verifyInterval)
		synctest.Wait()
		if n := testutil.ToFloat64(s.metrics.external.WithLabelValues(byPoll)); n != 1 {
			t.Errorf("%v external changes found by polling", n)
		}
	})
}

// TestTamperedDivertDropsUntilRepaired has a writer of xtables targets that fails:
// nft has written the other rules before.
func TestTamperedDivertDropsUntilRepaired(t *testing.T) {
	s, fake := newFake(t, nil)
	s.writeXTables = func(Config) error { return nil }
	mustSync(t, s, isolatedPod)
	tamper(t, fake, func(tx *knftables.Transaction) {
		tx.Insert(&knftables.Rule{Chain: divertChain, Rule: "accept"})
	})
	s.writeXTables = func(Config) error { return errNotSynced }
	s.commits.started()
	if err := s.sync(testContext(t)); err == nil {
		t.Fatal("the sync succeeded")
	}
	checkTraces(t, fake, []traceCase{{"first packet", packet(peer4, v4), drop}})
}

func TestLostNotificationsTriggerVerification(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, isolatedPod)
		tamper(t, s.fake, tamperings["table deleted"])
		s.kernel.(*fakeKernel).notify <- commit{lost: true}
		synctest.Wait()
		if s.fake.Table == nil || s.Healthy() != nil {
			t.Errorf("table %v, healthy: %v", s.fake.Table, s.Healthy())
		}
		if n := testutil.ToFloat64(s.metrics.lost); n != 1 {
			t.Errorf("%v losses counted", n)
		}
	})
}

func TestUnhealthyWhileChangeIsPendingTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, isolatedPod)
		s.hang.hang.Store(true)
		s.Set(Sets{Ingress: []netip.Addr{v4b}})
		time.Sleep(applyTimeout - time.Millisecond)
		if err := s.Healthy(); err != nil {
			t.Errorf("before the timeout: %v", err)
		}
		for range 20 { // also with further changes, and while each is retried
			time.Sleep(time.Second)
			s.Set(Sets{Ingress: []netip.Addr{v4b}, Egress: s.desired.requested.Ingress})
			s.Set(Sets{Ingress: []netip.Addr{v4b}})
			if s.Healthy() == nil {
				t.Fatal("healthy, and the change is still pending")
			}
		}
		s.hang.hang.Store(false)
		time.Sleep(syncTimeout + retryInterval)
		synctest.Wait()
		if err := s.Healthy(); err != nil {
			t.Errorf("once it is applied: %v", err)
		}
	})
}

func TestUnhealthyWhileKernelHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, isolatedPod)
		deaf := make(chan struct{})
		s.hang.deaf.Store(&deaf)
		s.Set(Sets{Ingress: []netip.Addr{v4b}})
		time.Sleep(applyTimeout)
		if err := s.Healthy(); err == nil || !strings.Contains(err.Error(), "a change has been pending for 5s") {
			t.Errorf("healthy: %v", err)
		}
		close(deaf)
		synctest.Wait()
		if err := s.Healthy(); err != nil {
			t.Errorf("once it is applied: %v", err)
		}
	})
}

// A change that comes while another one is written has not been pending as long as that
// one.
func TestHealthyDuringFrequentChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, isolatedPod)
		for i := range 2000 {
			s.Set(Sets{Ingress: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})}})
			time.Sleep(10 * time.Millisecond)
			if err := s.Healthy(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestHangingNftIsKilled has an nft whose child keeps its output open.
func TestHangingNftIsKilled(t *testing.T) {
	dir := t.TempDir()
	started := filepath.Join(dir, "started")
	script := "#!/bin/sh\nsleep 1000 &\necho $! >" + started + ".tmp\nmv " + started + ".tmp " + started + "\nwait\n"
	path := filepath.Join(dir, "nft")
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	fake := knftables.NewFake(knftables.InetFamily, TableName)
	tx := fake.NewTransaction()
	tx.Add(&knftables.Table{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- (&program{fake, path}).Run(ctx, tx) }()
	pid := 0
	await(t, func() bool {
		content, err := os.ReadFile(started)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(content)))
		return err == nil
	})
	t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGKILL) }) // if the test fails
	cancel()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("got %v", err)
	}
	await(t, func() bool {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z ") || unix.Kill(pid, 0) == unix.ESRCH
	})
}

// A commit of nft counts even if the end of its output is not read.
func TestNftOutputIsNotWaitedForIndefinitely(t *testing.T) {
	dir := t.TempDir()
	started := filepath.Join(dir, "started")
	path := filepath.Join(dir, "nft")
	if err := os.WriteFile(path, []byte("#!/bin/sh\nsleep 1000 &\necho $! >"+started+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	fake := knftables.NewFake(knftables.InetFamily, TableName)
	tx := fake.NewTransaction()
	tx.Add(&knftables.Table{})
	err := (&program{fake, path}).Run(t.Context(), tx)
	content, _ := os.ReadFile(started)
	if pid, _ := strconv.Atoi(strings.TrimSpace(string(content))); pid > 0 {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	if err != nil {
		t.Error(err)
	}
}

// await polls until f is true.
func await(t *testing.T, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("condition not met within 30s")
		}
	}
}

func TestFaultyTransactionIsNotRun(t *testing.T) {
	fake := knftables.NewFake(knftables.InetFamily, TableName)
	tx := fake.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Add(&knftables.Chain{}) // has no name
	if err := (&program{fake, "/bin/true"}).Run(t.Context(), tx); err == nil {
		t.Error("it was run")
	}
}
