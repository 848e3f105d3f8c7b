package clusterwatch

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// notWatched lists the kinds that are not watched.
func (h *harness) notWatched() string {
	var kinds []string
	following, _ := h.Following()
	for _, f := range following {
		if f.Err != nil {
			kinds = append(kinds, f.Kind)
		}
	}
	return strings.Join(kinds, " ")
}

// What a snapshot contains is known after it is published, also when later versions change nothing in
// it. After a backup is restored, its lower versions count.
func TestContents(t *testing.T) {
	for _, streaming := range []bool{false, true} {
		t.Run(fmt.Sprintf("streaming %v", streaming), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(streaming)
				s.add(pod("a", "10.0.0.1"), denyAll("deny"))
				var mu sync.Mutex // of h, last and snapshots
				var h *harness
				var last Contents
				snapshots := 0
				mu.Lock()
				h = startWith(t, s.inBubble(t), Config{MinInterval: time.Second, Contains: func(c Contents) {
					mu.Lock()
					defer mu.Unlock()
					last, snapshots = c, len(h.all())
				}})
				mu.Unlock()
				want := func(when, version string, published int) {
					t.Helper()
					synctest.Wait()
					mu.Lock()
					defer mu.Unlock()
					if got := last.Versions[kindNetworkPolicy]; got != version || snapshots != published {
						t.Errorf("%s: version %s after %d snapshots, want %s after %d", when, got, snapshots, version, published)
					}
				}
				version := func() string {
					s.mu.Lock()
					defer s.mu.Unlock()
					return fmt.Sprint(s.version)
				}
				time.Sleep(time.Minute)
				want("listed", version(), 1)

				s.add(denyAll("deny2"))
				synctest.Wait()
				want("a new policy", version(), 2)

				unchanged := denyAll("deny2")
				unchanged.Annotations = map[string]string{"example.com/note": "x"}
				s.add(unchanged)
				time.Sleep(2 * time.Second)
				want("a change that no verdict depends on", version(), 2)

				s.remove(unchanged)
				synctest.Wait()
				want("a deleted policy", version(), 3)
				known := version()

				s.leave(syscall.ECONNREFUSED)
				time.Sleep(time.Minute)
				if got := h.notWatched(); !strings.Contains(got, kindNetworkPolicy) {
					t.Errorf("without a server these are not watched: %q", got)
				}
				s.restore(6, pod("a", "10.0.0.1"), denyAll("deny"))
				s.leave(nil)
				time.Sleep(believeAfter / 2)
				want("lists are older", known, 3)
				if got := h.notWatched(); !strings.Contains(got, kindNetworkPolicy) {
					t.Errorf("while lists are older these are not watched: %q", got)
				}
				time.Sleep(2 * believeAfter)
				want("lists are believed", version(), 3)
				if last.Restores == 0 {
					t.Error("that versions have gone back is not noted")
				}
				if got := h.notWatched(); got != "" {
					t.Errorf("finally these are not watched: %q", got)
				}
			})
		})
	}
}
