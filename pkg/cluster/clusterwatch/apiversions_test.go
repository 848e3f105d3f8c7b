package clusterwatch

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestNoPolicyIsForgottenWhileTheServerHasIt: the served versions change, and may be unsupported
// for any time.
func TestNoPolicyIsForgottenWhileTheServerHasIt(t *testing.T) {
	const old, new, unknown = "v1alpha2", "v1beta1", "v1"
	for name, phases := range map[string][][]string{
		"upgraded":                   {{old}, {old, new}, {new}},
		"upgraded in one step":       {{old}, {new}},
		"downgraded":                 {{new, old}, {old}},
		"downgraded in one step":     {{new}, {old}},
		"to and fro":                 {{old}, {new}, {old}, {old, new}, {new}, {old}},
		"with unknown versions":      {{old}, {old, new, unknown}, {new, unknown}},
		"only unknown for a while":   {{old}, {unknown}, {old}},
		"only unknown, then a newer": {{old}, {unknown, "v2"}, {new}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(true)
				s.serve(phases[0]...)
				s.add(pod("a", "10.0.0.1"), clusterPolicy("q"))
				h := startWith(t, s.inBubble(t), Config{Kinds: allKinds})
				for _, versions := range phases {
					s.serve(versions...)
					time.Sleep(time.Hour)
				}
				s.add(clusterPolicy("r"))
				h.expect(t, "at the end", "cnp/q cnp/r pod/a=10.0.0.1", kindClusterNetworkPolicy, 1)
				for _, p := range h.all() {
					if !strings.Contains(p.in, "cnp/q") {
						t.Errorf("a snapshot of %q lacks a policy", p.in)
					}
				}
			})
		})
	}
}

// TestTheNewestVersionIsWatched, even if the older one is still served.
func TestTheNewestVersionIsWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(true)
		s.serve("v1alpha2")
		s.add(clusterPolicy("q"))
		h := startWith(t, s.inBubble(t), Config{Kinds: allKinds})
		h.expect(t, "older", "cnp/q", kindClusterNetworkPolicy, 1)
		s.serve("v1alpha2", "v1beta1")
		time.Sleep(notice)
		synctest.Wait()
		if got := h.log.String(); !strings.Contains(got, `Kind is read in another version kind="ClusterNetworkPolicy" version="v1beta1"`) {
			t.Errorf("the log is %s", got)
		}
	})
}

// TestAServerThatServesOtherVersionsOnly: the policies still exist, and the message says what to
// do.
func TestAServerThatServesOtherVersionsOnly(t *testing.T) {
	const want = "clusternetworkpolicies.policy.networking.k8s.io are served in version v1 only, and read in v1beta1 or v1alpha2: install"
	synctest.Test(t, func(t *testing.T) {
		s := newServer(true)
		s.add(clusterPolicy("q"))
		s.serve("v1")
		h := startWith(t, s.inBubble(t), Config{Kinds: allKinds})
		time.Sleep(time.Hour)
		if got := h.all(); len(got) > 0 {
			t.Errorf("published %v", got)
		}
		if err := h.Listed(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("not listed: %v", err)
		}
		s.serve("v1", "v1alpha2")
		time.Sleep(notice)
		h.expect(t, "readable", "cnp/q", kindClusterNetworkPolicy, 1)
		s.serve("v1")
		time.Sleep(time.Hour)
		h.expect(t, "unreadable again", "cnp/q", kindClusterNetworkPolicy, 0)
		if got := strings.Count(h.log.String(), want); got < 60 {
			t.Errorf("logged %d times in two hours", got)
		}
		s.answer(cnps, http.StatusNotFound)
		time.Sleep(time.Minute)
		h.expect(t, "removed", "", kindClusterNetworkPolicy, 0)
		s.answer(cnps, http.StatusOK)
		time.Sleep(absentList + time.Minute)
		if got := h.failures(kindClusterNetworkPolicy); got < 60 {
			t.Errorf("%v failures counted", got)
		}
		if got := h.log.String(); !strings.Contains(got[strings.LastIndex(got, "Kind is not served"):], want) {
			t.Error("a definition that is installed later, of a version that is not read, is not reported")
		}
	})
}

// TestWhatDiscoveryHasIsThere: a server may need some time until it serves what discovery
// reports.
func TestWhatDiscoveryHasIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(true)
		s.add(clusterPolicy("q"))
		h := startWith(t, s.inBubble(t), Config{Kinds: allKinds})
		time.Sleep(time.Minute)
		s.discover("v1alpha2")
		s.serve()
		time.Sleep(10 * time.Minute)
		h.expect(t, "in between", "cnp/q", kindClusterNetworkPolicy, 1)
		s.serve("v1alpha2")
		time.Sleep(notice)
		s.remove(clusterPolicy("q"))
		h.expect(t, "served again, and deleted", "", kindClusterNetworkPolicy, 1)
	})
}
