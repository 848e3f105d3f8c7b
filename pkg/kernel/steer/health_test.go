package steer

import (
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestUnhealthyWhileChangeIsPendingTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, isolatedPod)
		s.hang.hang.Store(true)
		s.Set(Sets{Ingress: []netip.Addr{v4b}})
		time.Sleep(applyTimeout - time.Millisecond)
		if err := s.Healthy(); err != nil {
			t.Errorf("before the timeout: %v", err)
		}
		for range 20 { // with further changes, and while each is retried
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

// A change that arrives during a write has not been pending for as long as the change that is being
// written.
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
