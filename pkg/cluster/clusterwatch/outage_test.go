package clusterwatch

import (
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// spread returns different numbers instead of random ones.
func spread() func() float64 {
	var n atomic.Uint64
	return func() float64 { return float64(n.Add(7)%10) / 10 }
}

// age returns the metric of the age of what is known.
func (h *harness) age(t *testing.T) float64 {
	t.Helper()
	families, err := h.cfg.Registerer.(*prometheus.Registry).Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "netpol_snapshot_age_seconds" {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatal("there is no metric of the age")
	return 0
}

// wholeLists returns how often all objects of a kind were sent.
func (s *server) wholeLists() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.whole)
}

// outages are ways in which a server does not serve: no connection, or answers that are
// the same for every request.
var outages = map[string]struct {
	begin func(*server)
	end   func(*server)
	lists bool // whether the objects are listed again
}{
	"refused":      {begin: func(s *server) { s.leave(syscall.ECONNREFUSED) }, end: func(s *server) { s.leave(nil) }},
	"timeout":      {begin: func(s *server) { s.leave(syscall.ETIMEDOUT) }, end: func(s *server) { s.leave(nil) }},
	"closed":       {begin: func(s *server) { s.leave(io.ErrUnexpectedEOF) }, end: func(s *server) { s.leave(nil) }},
	"starting":     {begin: answers(http.StatusServiceUnavailable), end: answers(http.StatusOK)},
	"busy":         {begin: answers(http.StatusTooManyRequests), end: answers(http.StatusOK)},
	"unauthorized": {begin: answers(http.StatusUnauthorized), end: answers(http.StatusOK)},
	"forbidden":    {begin: answers(http.StatusForbidden), end: answers(http.StatusOK)},
	"fails":        {begin: answers(http.StatusInternalServerError), end: answers(http.StatusOK), lists: true},
}

func answers(status int) func(*server) {
	return func(s *server) {
		for _, r := range resources {
			s.answer(r.Resource, status)
		}
	}
}

// TestEveryKindIsCurrentSoonAfterAnOutage: whatever the delay of each kind is when the
// server serves again.
func TestEveryKindIsCurrentSoonAfterAnOutage(t *testing.T) {
	for name, outage := range outages {
		for _, streaming := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, streaming %v", name, streaming), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newServer(streaming)
					s.add(pod("a", "10.0.0.1"), denyAll("deny"), clusterPolicy("q"))
					h := startWith(t, s.inBubble(t), Config{Kinds: allKinds})
					time.Sleep(time.Minute)
					if got := h.age(t); got != 0 {
						t.Errorf("age %v while everything is watched", got)
					}
					lists := s.wholeLists()
					outage.begin(s)
					for _, o := range []object{pod("b", "10.0.0.2"), denyAll("deny2"), clusterPolicy("r")} {
						time.Sleep(3*time.Minute + 333*time.Millisecond)
						s.add(o)
					}
					time.Sleep(time.Minute)
					if got := h.age(t); math.Abs(got-601) > 1 {
						t.Errorf("age %v after 601 s", got)
					}
					for _, p := range h.all() {
						if want := "cnp/q np/deny pod/a=10.0.0.1"; p.in != want {
							t.Errorf("published %s during the outage, want %s", p.in, want)
						}
					}
					outage.end(s)
					time.Sleep(retryMax)
					synctest.Wait()
					if got, want := h.last(t).in, "cnp/q cnp/r np/deny np/deny2 pod/a=10.0.0.1 pod/b=10.0.0.2"; got != want {
						t.Errorf("in force after the outage is %s, want %s", got, want)
					}
					if got := h.age(t); got != 0 {
						t.Errorf("age %v after the outage", got)
					}
					if got := s.wholeLists(); !outage.lists && !maps.Equal(got, lists) {
						t.Errorf("whole lists %v, and before the outage %v", got, lists)
					}
				})
			})
		}
	}
}

// TestAllKindsRetryWhenOneSucceeds: the delays end with the first success.
func TestAllKindsRetryWhenOneSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(true)
		s.add(pod("a", "10.0.0.1"))
		h := startWith(t, s.inBubble(t), Config{Kinds: allKinds})
		for range 5 {
			time.Sleep(time.Minute)
			s.leave(syscall.ECONNREFUSED)
			time.Sleep(time.Minute)
			s.leave(nil)
			began, current := time.Now(), 0
			for ; current < len(allNames) && time.Since(began) <= retryMax; time.Sleep(time.Millisecond) {
				synctest.Wait()
				now := 0
				for _, m := range h.mirrors {
					if h.currency.watched(m) {
						now++
					}
				}
				if current > 0 && now < len(allNames) {
					t.Errorf("%d kinds of %d are current a millisecond after the first", now, len(allNames))
				}
				current = now
			}
			if current == 0 {
				t.Fatal("no kind is current")
			}
		}
	})
}

// TestAServerThatFailsIsNotAskedTooOften: for each kind of failure.
func TestAServerThatFailsIsNotAskedTooOften(t *testing.T) {
	cases := map[string]func(*server){
		"watches that end at once":               func(s *server) { s.breakEach(false) },
		"watches that end at once with an error": func(s *server) { s.breakEach(true) },
		"lists of no use":                        func(s *server) { s.restore(1) },
	}
	for name, outage := range outages {
		cases[name] = outage.begin
	}
	for name, begin := range cases {
		for _, streaming := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, streaming %v", name, streaming), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newServer(streaming)
					s.add(pod("a", "10.0.0.1"), denyAll("deny"))
					start(t, s.inBubble(t), 0)
					time.Sleep(time.Minute)
					before := s.requests("pods")
					begin(s)
					time.Sleep(20 * time.Second)
					// Ten retries in the first two seconds, and 20 later. The Reflector may
					// send a different request at once: a list instead of a watch.
					if got := s.requests("pods") - before; got > 3*30 {
						t.Errorf("%d requests in 20 seconds", got)
					}
				})
			})
		}
	}
}

// TestErrorsThatEndWatchesAreReported: each is counted, and the log has a line a minute.
func TestErrorsThatEndWatchesAreReported(t *testing.T) {
	for _, streaming := range []bool{false, true} {
		t.Run(fmt.Sprintf("streaming %v", streaming), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(streaming)
				s.add(pod("a", "10.0.0.1"), denyAll("deny"))
				h := start(t, s.inBubble(t), 0)
				time.Sleep(time.Minute)
				if got := h.failures(kindPod); got != 0 {
					t.Errorf("%v failures before the first", got)
				}
				s.breakEach(true)
				time.Sleep(10 * time.Minute)
				if got := h.failures(kindPod); got < 100 {
					t.Errorf("%v failures in 10 minutes", got)
				}
				lines := 0
				for line := range strings.Lines(h.log.String()) {
					if strings.Contains(line, "Watch ended") && strings.Contains(line, `kind="Pod"`) {
						lines++
						if !strings.Contains(line, "etcd: request timed out") {
							t.Errorf("the log does not name the error: %s", line)
						}
					}
				}
				if lines < 9 || lines > 11 {
					t.Errorf("%d lines of log in 10 minutes", lines)
				}
				for _, p := range h.all() {
					if want := "np/deny pod/a=10.0.0.1"; p.in != want {
						t.Errorf("published %s, want %s", p.in, want)
					}
				}
			})
		})
	}
}

// TestTheLogSaysWhatHolds: the log of an outage names what is in force, and a last known state only where
// there is one.
func TestTheLogSaysWhatHolds(t *testing.T) {
	const known, saved, none = "the last known state stays in force", "the saved state is used until they have been listed", "none has been listed yet"
	for name, outage := range outages {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "snapshot")
				s := newServer(false)
				s.add(pod("a", "10.0.0.1"))
				said := func(h *harness, want string) {
					t.Helper()
					time.Sleep(2 * time.Minute)
					text := h.log.String()
					for _, other := range []string{known, saved, none} {
						if got := strings.Contains(text, other); got != (other == want) {
							t.Errorf("%q is in the log: %v, want only %q", other, got, want)
						}
					}
					h.cancel()
					<-h.done
				}
				outage.begin(s)
				said(startWith(t, s.inBubble(t), Config{Saved: savedIn(path, "1", nil)}), none)
				outage.end(s)
				h := startWith(t, s.inBubble(t), Config{Saved: savedIn(path, "1", nil)})
				time.Sleep(time.Minute)
				outage.begin(s)
				s.breakEach(true)
				said(h, known)
				s.breakEach(false)
				said(startWith(t, s.inBubble(t), Config{Saved: savedIn(path, "1", nil)}), saved)
			})
		})
	}
}

// TestDelaysGrowAndAreSpread: to two seconds, and by half.
func TestDelaysGrowAndAreSpread(t *testing.T) {
	for _, tc := range []struct {
		jitter float64
		want   string
	}{
		{0, "50ms 100ms 200ms 400ms 800ms 1s 1s"},
		{0.5, "75ms 150ms 300ms 600ms 1.2s 1.5s 1.5s"},
	} {
		t.Run(fmt.Sprintf("jitter %v", tc.jitter), func(t *testing.T) {
			r := newRetries(func() float64 { return tc.jitter })
			var got []string
			for _, n := range []int{1, 2, 3, 4, 5, 6, 1 << 40} {
				got = append(got, r.delay(n).String())
			}
			if got := strings.Join(got, " "); got != tc.want {
				t.Errorf("delays %s, want %s", got, tc.want)
			}
		})
	}
}

// TestAServerThatComesAndGoesChangesNothing: each time for longer than the delay.
func TestAServerThatComesAndGoesChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(true)
		s.add(pod("a", "10.0.0.1"), denyAll("deny"))
		h := start(t, s.inBubble(t), 0)
		for i := range 50 {
			s.leave(syscall.ECONNREFUSED)
			time.Sleep(time.Duration(i) * 100 * time.Millisecond)
			s.leave(nil)
			time.Sleep(time.Duration(i) * 70 * time.Millisecond)
		}
		s.add(denyAll("deny2"))
		time.Sleep(retryMax)
		synctest.Wait()
		for i, p := range h.all() {
			if want := []string{"np/deny pod/a=10.0.0.1", "np/deny np/deny2 pod/a=10.0.0.1"}; i > 1 || p.in != want[i] {
				t.Errorf("published %s", p.in)
			}
		}
	})
}

// TestOldListsAreNotInForce: old lists of a lagging server or of restored data are ignored
// for half a minute.
func TestOldListsAreNotInForce(t *testing.T) {
	const known = "np/deny np/deny2 pod/a=10.0.0.1"
	for _, streaming := range []bool{false, true} {
		for name, away := range map[string]time.Duration{"at once": 0, "after an outage": time.Minute} {
			t.Run(fmt.Sprintf("%s, streaming %v", name, streaming), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newServer(streaming)
					s.add(pod("a", "10.0.0.1"), denyAll("deny"), denyAll("deny2"))
					h := start(t, s.inBubble(t), 0)
					roll := func(version int, objects ...object) {
						if away > 0 {
							s.leave(syscall.ECONNREFUSED)
							time.Sleep(away)
						} else {
							// Without a failed request nothing shows that versions went back, so
							// these watches cannot resume.
							s.mu.Lock()
							s.compacted = math.MaxInt
							s.mu.Unlock()
						}
						s.restore(version, objects...)
						s.leave(nil)
					}
					time.Sleep(time.Minute)

					roll(5, pod("a", "10.0.0.1")) // lags for a while
					time.Sleep(20 * time.Second)
					if got := h.last(t).in; got != known {
						t.Errorf("in force is %s while the server lags, want %s", got, known)
					}
					if got := h.age(t); got < 20 {
						t.Errorf("age %v of what is known", got)
					}
					if got := h.failures(kindNetworkPolicy); got == 0 {
						t.Error("no failure is counted")
					}
					s.mu.Lock()
					s.compacted = 0
					s.mu.Unlock()
					s.restore(20, pod("a", "10.0.0.1"), denyAll("deny"), denyAll("deny2"), denyAll("deny3"))
					time.Sleep(2 * retryMax) // a watch that is refused, and a list
					if got, want := h.last(t).in, "np/deny np/deny2 np/deny3 pod/a=10.0.0.1"; got != want {
						t.Errorf("in force is %s after the server has caught up, want %s", got, want)
					}
					if got := len(h.all()); got != 2 {
						t.Errorf("%d snapshots, want 2", got)
					}

					time.Sleep(time.Minute)
					roll(6, pod("a", "10.0.0.1"), denyAll("deny"))
					time.Sleep(believeAfter - 2*retryMax)
					if got, want := h.last(t).in, "np/deny np/deny2 np/deny3 pod/a=10.0.0.1"; got != want {
						t.Errorf("in force is %s, want %s", got, want)
					}
					time.Sleep(8 * retryMax)
					if got, want := h.last(t).in, "np/deny pod/a=10.0.0.1"; got != want {
						t.Errorf("in force is %s after the data was restored, want %s", got, want)
					}
				})
			})
		}
	}
}

func TestTheAgeIsInfiniteBeforeAllKindsAreWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(true)
		s.answer("networkpolicies", http.StatusForbidden)
		h := start(t, s.inBubble(t), 0)
		time.Sleep(time.Hour)
		if got := h.age(t); !math.IsInf(got, 1) {
			t.Errorf("age %v", got)
		}
		s.answer("networkpolicies", http.StatusOK)
		time.Sleep(retryMax)
		if got := h.age(t); got != 0 {
			t.Errorf("age %v when all are watched", got)
		}
	})
}
