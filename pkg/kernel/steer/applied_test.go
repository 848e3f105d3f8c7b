package steer

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// WaitApplied ends when the state of the last Set is written, also if a later one replaced it before.
func TestWaitApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, isolatedPod)
		if err := s.WaitApplied(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.hang.hang.Store(true)
		s.Set(Sets{})
		done := make(chan error, 1)
		go func() { done <- s.WaitApplied(t.Context()) }()
		time.Sleep(time.Second)
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("it ends while the kernel hangs: %v", err)
		default:
		}
		s.Set(Sets{Ingress: isolatedPod.Ingress})
		s.hang.hang.Store(false)
		time.Sleep(syncTimeout + 2*retryInterval)
		synctest.Wait()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Error("it does not end although a later state is written")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s.hang.hang.Store(true)
		s.Set(isolatedPod)
		if err := s.WaitApplied(ctx); err == nil {
			t.Error("it ends although the kernel hangs")
		}
		s.hang.hang.Store(false)
	})
}

// Before the first Set nothing is applied, whatever Close has written.
func TestCloseIsNotApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newFake(t, nil)
		s.Close(isolatedPod)
		mustApply(t, s)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.WaitApplied(ctx); err == nil {
			t.Error("a state of Close counts")
		}
	})
}

func mustApply(t *testing.T, s *Steerer) {
	t.Helper()
	if err := s.sync(testContext(t)); err != nil {
		t.Fatal(err)
	}
}

// Verify waits for the notification of what another process has committed before, and fails until that
// is repaired.
func TestVerify(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, isolatedPod)
		verify := func(when, want string) {
			t.Helper()
			got := ""
			if err := s.Verify(t.Context()); err != nil {
				got = err.Error()
			}
			if (got == "") != (want == "") || !strings.Contains(got, want) {
				t.Errorf("%s: %q, want %q", when, got, want)
			}
		}
		s.notifyOwn(t)
		verify("unchanged", "")
		s.hang.hang.Store(true)
		tamper(t, s.fake, tamperings["table deleted"])
		verify("changed without a notification", "changes of nftables by other processes are not known")
		s.notify(t, true)
		verify("changed", "flusher, pid 7")
		s.hang.hang.Store(false)
		time.Sleep(syncTimeout + 2*retryInterval)
		synctest.Wait()
		s.notifyOwn(t)
		verify("repaired", "")
		s.setInPlace(false)
		verify("with another agent", "another agent of the node writes the table")
	})
}
