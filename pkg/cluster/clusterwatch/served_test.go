package clusterwatch

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/watch"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

const (
	anps = "adminnetworkpolicies"
	cnps = "clusternetworkpolicies"
)

// notice is how soon an installed kind is enforced.
const notice = 10 * time.Second

// add makes objects, and remove deletes them, one by one.
func (s *server) add(objects ...object) {
	for _, o := range objects {
		s.change([]watch.EventType{watch.Added}, o)
	}
}

func (s *server) remove(objects ...object) {
	for _, o := range objects {
		s.change([]watch.EventType{watch.Deleted}, o)
	}
}

// requests returns how many lists and watches of a resource there were.
func (s *server) requests(resource string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[resource]
}

// expect compares the enforced policies, and the metric of a kind.
func (h *harness) expect(t *testing.T, when, want, kind string, served float64) {
	t.Helper()
	synctest.Wait()
	if got := h.last(t).in; got != want {
		t.Errorf("%s: in force is %s, want %s", when, got, want)
	}
	if got := testutil.ToFloat64(h.metrics.served.WithLabelValues(kind)); got != served {
		t.Errorf("%s: the metric says %v, want %v", when, got, served)
	}
}

// failures returns how many lists and watches of a kind have failed.
func (h *harness) failures(kind string) float64 {
	return testutil.ToFloat64(h.metrics.watchErrors.WithLabelValues(kind))
}

func TestAKindThatIsNotInstalledIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(true)
		s.add(pod("a", "10.0.0.1"), clusterPolicy("q"))
		s.answer(anps, http.StatusNotFound)
		h := startWith(t, s.inBubble(t), Config{Kinds: []*compile.Kind{compile.KindAdminNetworkPolicy, compile.KindClusterNetworkPolicy}})
		h.expect(t, "at once", "cnp/q pod/a=10.0.0.1", kindAdminNetworkPolicy, 0)
		h.expect(t, "at once", "cnp/q pod/a=10.0.0.1", kindClusterNetworkPolicy, 1)

		time.Sleep(time.Hour)
		if got := h.all(); len(got) != 1 {
			t.Errorf("%d snapshots while nothing happened: %v", len(got), got)
		}
		if got := h.failures(kindAdminNetworkPolicy); got != 0 {
			t.Errorf("%v failures counted", got)
		}
		if got, most := s.requests(anps), int(time.Hour/absentPause)+2*int(time.Hour/absentList)+2; got > most {
			t.Errorf("asked %d times in an hour, want at most %d", got, most)
		}

		p := adminPolicy("p")
		s.add(p, adminPolicy("r"))
		s.answer(anps, http.StatusOK)
		time.Sleep(notice)
		h.expect(t, "installed", "anp/p anp/r cnp/q pod/a=10.0.0.1", kindAdminNetworkPolicy, 1)
		s.remove(p)
		h.expect(t, "changed", "anp/r cnp/q pod/a=10.0.0.1", kindAdminNetworkPolicy, 1)
		for _, line := range []string{"Kind is not served", "Kind is served"} {
			if got := strings.Count(h.log.String(), line); got != 1 {
				t.Errorf("%q is logged %d times, want once", line, got)
			}
		}
	})
}

func TestKindRemovedAndInstalledAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(true)
		s.add(pod("a", "10.0.0.1"), clusterPolicy("q"))
		h := startWith(t, s.inBubble(t), Config{Kinds: allKinds})
		h.expect(t, "at first", "cnp/q pod/a=10.0.0.1", kindClusterNetworkPolicy, 1)
		for i := range 3 {
			time.Sleep(5 * time.Minute) // reflectors grow patient with what changes often
			s.remove(clusterPolicy("q"))
			h.expect(t, fmt.Sprintf("deleted, time %d", i), "pod/a=10.0.0.1", kindClusterNetworkPolicy, 1)
			s.answer(cnps, http.StatusNotFound)
			time.Sleep(notice)
			h.expect(t, fmt.Sprintf("removed, time %d", i), "pod/a=10.0.0.1", kindClusterNetworkPolicy, 0)

			time.Sleep(5 * time.Minute)
			s.answer(cnps, http.StatusOK)
			s.add(clusterPolicy("q"))
			time.Sleep(notice)
			h.expect(t, fmt.Sprintf("installed, time %d", i), "cnp/q pod/a=10.0.0.1", kindClusterNetworkPolicy, 1)
		}
	})
}

// TestPoliciesOutliveAServerThatDoesNotServeThem: short or occasional wrong answers of a
// server drop no policies.
func TestPoliciesOutliveAServerThatDoesNotServeThem(t *testing.T) {
	type phase struct {
		status int
		lasts  time.Duration
	}
	const gone, broken, away = http.StatusNotFound, http.StatusInternalServerError, http.StatusServiceUnavailable
	for name, phases := range map[string][]phase{
		"for a moment":            {{gone, time.Second}},
		"for a while":             {{gone, 25 * time.Second}},
		"after an outage":         {{away, 10 * time.Minute}, {gone, 25 * time.Second}},
		"with errors in between":  {{gone, 20 * time.Second}, {broken, time.Minute}, {gone, 20 * time.Second}, {away, 5 * time.Second}, {gone, 20 * time.Second}},
		"with success in between": {{gone, 20 * time.Second}, {http.StatusOK, time.Minute}, {gone, 20 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(true)
				s.add(adminPolicy("p"))
				h := startWith(t, s.inBubble(t), Config{Kinds: allKinds})
				time.Sleep(time.Minute)
				for _, p := range phases {
					s.answer(anps, p.status)
					time.Sleep(p.lasts)
				}
				s.add(pod("a", "10.0.0.1"), adminPolicy("r"))
				s.answer(anps, http.StatusOK)
				time.Sleep(time.Minute)
				h.expect(t, "served again", "anp/p anp/r pod/a=10.0.0.1", kindAdminNetworkPolicy, 1)
				for _, p := range h.all() {
					if !strings.Contains(p.in, "anp/p") {
						t.Errorf("a snapshot of %q lacks a policy", p.in)
					}
				}
			})
		})
	}
}

func TestAServerThatGoesOnNotToServePoliciesIsBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(true)
		s.add(pod("a", "10.0.0.1"), adminPolicy("p"))
		h := startWith(t, s.inBubble(t), Config{Kinds: allKinds})
		time.Sleep(5 * time.Minute)
		s.answer(anps, http.StatusNotFound)
		time.Sleep(30 * time.Second)
		h.expect(t, "doubted", "anp/p pod/a=10.0.0.1", kindAdminNetworkPolicy, 0)
		time.Sleep(10 * time.Second)
		h.expect(t, "believed", "pod/a=10.0.0.1", kindAdminNetworkPolicy, 0)
		if got := strings.Count(h.log.String(), "Kind is no longer served"); got != 1 {
			t.Errorf("logged %d times that policies are at stake, want once", got)
		}
		s.answer(anps, http.StatusOK)
		time.Sleep(notice)
		h.expect(t, "served again", "anp/p pod/a=10.0.0.1", kindAdminNetworkPolicy, 1)
	})
}

// TestNothingIsPublishedThatLacksWhatMayNotBeRead: an agent without the right to read its
// policies does not appear to work.
func TestNothingIsPublishedThatLacksWhatMayNotBeRead(t *testing.T) {
	for resource, kind := range map[string]string{anps: kindAdminNetworkPolicy, cnps: kindClusterNetworkPolicy} {
		for _, status := range []int{http.StatusForbidden, http.StatusUnauthorized, http.StatusInternalServerError, http.StatusServiceUnavailable} {
			t.Run(kind+" "+http.StatusText(status), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newServer(true)
					s.add(adminPolicy("p"), clusterPolicy("q"))
					s.answer(resource, status)
					h := startWith(t, s.inBubble(t), Config{Kinds: allKinds})
					time.Sleep(time.Hour)
					if got := h.all(); len(got) > 0 {
						t.Errorf("published %v", got)
					}
					if got := h.failures(kind); got < 10 {
						t.Errorf("%v failures counted in an hour", got)
					}
					s.answer(resource, http.StatusOK)
					time.Sleep(time.Minute)
					h.expect(t, "readable", "anp/p cnp/q", kind, 1)
				})
			})
		}
	}
}

func TestAFailureWhileAKindIsWaitedForIsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(true)
		s.add(adminPolicy("p"))
		s.answer(anps, http.StatusNotFound)
		h := startWith(t, s.inBubble(t), Config{Kinds: allKinds})
		for range 5 {
			s.answer(anps, http.StatusNotFound)
			time.Sleep(time.Minute)
			before := h.failures(kindAdminNetworkPolicy)
			s.answer(anps, http.StatusForbidden)
			time.Sleep(time.Hour)
			h.expect(t, "forbidden", "", kindAdminNetworkPolicy, 0)
			if got := h.failures(kindAdminNetworkPolicy) - before; got < 10 {
				t.Errorf("%v failures counted in an hour", got)
			}
			s.answer(anps, http.StatusOK)
			time.Sleep(notice)
			h.expect(t, "readable", "anp/p", kindAdminNetworkPolicy, 1)
		}
	})
}

// TestKubernetesOwnKindsAreNotWaitedFor: every API server has the built-in kinds.
func TestKubernetesOwnKindsAreNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(true)
		s.answer("networkpolicies", http.StatusNotFound)
		h := startWith(t, s.inBubble(t), Config{Kinds: allKinds})
		time.Sleep(time.Hour)
		if got := h.all(); len(got) > 0 {
			t.Errorf("published %v", got)
		}
		if got := h.failures(kindNetworkPolicy); got < 10 {
			t.Errorf("%v failures counted in an hour", got)
		}
	})
}

func TestOnlyEnabledKindsAreAskedForAndCounted(t *testing.T) {
	for _, kinds := range [][]*compile.Kind{nil, allKinds[:1], allKinds[1:2], allKinds[2:], allKinds} {
		t.Run(fmt.Sprint("with ", kinds), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(true)
				s.add(adminPolicy("p"), baselinePolicy("default"), clusterPolicy("q"))
				h := startWith(t, s.inBubble(t), Config{Kinds: kinds})
				synctest.Wait()
				for _, k := range allKinds {
					enabled := slices.Contains(kinds, k)
					if asked := s.requests(k.Resource.Resource) > 0; asked != enabled {
						t.Errorf("asked for %s: %v", k, asked)
					}
					if objects := h.len(k); (objects == 1) != enabled {
						t.Errorf("%v objects of %s", objects, k)
					}
				}
				if got, want := testutil.CollectAndCount(h.metrics.watchErrors), 4+len(kinds); got != want {
					t.Errorf("%d kinds have rows, want %d", got, want)
				}
			})
		})
	}
}
