package steer

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"sigs.k8s.io/knftables"
)

// running is a Steerer that runs in a synctest bubble.
type running struct {
	*Steerer
	fake     *knftables.Fake
	hang     *hanging
	repaired *int // number of calls of Config.Repaired
}

// startRun runs s with sets until the test ends.
func startRun(t *testing.T, s *Steerer, sets Sets) {
	t.Helper()
	s.Set(sets)
	start(t, s)
}

func start(t *testing.T, s *Steerer) {
	t.Helper()
	ctx, cancel := context.WithCancel(testContext(t))
	done := make(chan error, 1)
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	go func() { done <- s.Run(ctx) }()
}

// externalChanges returns the number of counted changes by other processes.
func (s *Steerer) externalChanges(found string) float64 {
	return testutil.ToFloat64(s.metrics.external.WithLabelValues(found))
}

// run returns a running Steerer that has applied sets. It ends with the test.
func run(t *testing.T, sets Sets) running {
	t.Helper()
	nft := &hanging{Fake: knftables.NewFake(knftables.InetFamily, TableName)}
	repaired := 0
	s := newOn(t, nft, func(c *Config) { c.Repaired = func() { repaired++ } })
	startRun(t, s, sets)
	time.Sleep(time.Second)
	synctest.Wait()
	if err := s.Healthy(); err != nil {
		t.Fatal(err)
	}
	return running{s, nft.Fake, nft, &repaired}
}

// notify reports the fake's last transaction as one of another process.
func (r running) notify(t *testing.T, touched bool) {
	r.report(t, commit{process: "flusher", pid: 7, touched: touched})
}

// notifyOwn reports the fake's last transaction as our own.
func (r running) notifyOwn(t *testing.T) {
	r.report(t, commit{process: "agent", pid: 8, touched: true, port: tablePort})
}

func (r running) report(t *testing.T, c commit) {
	fake, ok := r.kernel.(*fakeKernel)
	if !ok {
		fake = r.kernel.(sharedKernel).fakeKernel
	}
	c.generation, _ = r.kernel.generation(t.Context())
	fake.notify <- c
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
				if n := s.externalChanges(byNotification); n != 1 {
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
		s.notifyOwn(t)
		tamper(t, s.fake, tamperings["element added"])
		s.notify(t, false) // reported as a commit to another table
		if _, ok := fakeContents(s.fake)["ingress-v4"][element{prefix: netip.MustParsePrefix("192.0.2.9/32")}]; !ok {
			t.Error("the table was verified")
		}
		if n := s.externalChanges(byNotification); n != 0 {
			t.Errorf("%v external changes counted", n)
		}
		time.Sleep(verifyInterval)
		synctest.Wait()
		if n := s.externalChanges(byPoll); n != 1 {
			t.Errorf("%v external changes were found by polling", n)
		}
	})
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
	})
}

// What another agent writes before this one takes over is no external change, as in each rollout.
func TestWritesOfAnotherAgentAreNoExternalChanges(t *testing.T) {
	s, _ := newFake(t, nil)
	s.commits.started()
	change := func(generation uint32) {
		s.notified(commit{generation: generation, process: "agent", touched: true, port: 99})
		mustSync(t, s, Sets{Ingress: []netip.Addr{v4}})
	}
	change(1)
	if got := s.externalChanges(byNotification); got != 0 {
		t.Errorf("%v changes are counted before the table was written", got)
	}
	change(100)
	if got := s.externalChanges(byNotification); got != 1 {
		t.Errorf("%v changes are counted of a table that is this agent's, want 1", got)
	}
}
