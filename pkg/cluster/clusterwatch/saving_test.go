package clusterwatch

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/watch"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/statefile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// savedIn returns the cache at path for a start of an agent.
func savedIn(path, boot string, kinds []*compile.Kind) *statefile.Cache {
	return statefile.New(statefile.Config{
		Path: path, MaxAge: time.Hour, Node: "n", Kinds: kinds, Boot: boot, Registerer: prometheus.NewRegistry(),
	})
}

// source returns which source of snapshots the metric names.
func (h *harness) source(t *testing.T) string {
	t.Helper()
	families, err := h.cfg.Registerer.(*prometheus.Registry).Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "netpol_snapshot_source" {
			return f.GetMetric()[0].GetLabel()[0].GetValue()
		}
	}
	return ""
}

// TestAStartUsesTheSavedState: at once and completely, and later the server's objects in one
// step.
func TestAStartUsesTheSavedState(t *testing.T) {
	for _, streaming := range []bool{false, true} {
		t.Run(fmt.Sprintf("streaming %v", streaming), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "snapshot")
				s := newServer(streaming)
				n := node("n")
				n.Spec.PodCIDRs = []string{"10.0.0.0/24"}
				s.add(namespace("x"), n, pod("a", "10.0.0.1"), pod("b", "10.0.0.2"), denyAll("deny"), adminPolicy("p"), baselinePolicy("default"), clusterPolicy("q"))
				const saved = "anp/p banp/default cnp/q node/n np/deny ns/x pod/a=10.0.0.1 pod/b=10.0.0.2"
				h := startWith(t, s.inBubble(t), Config{Kinds: allKinds, Saved: savedIn(path, "1", allKinds)})
				synctest.Wait()
				time.Sleep(time.Minute)
				h.cancel()
				<-h.done

				s.leave(syscall.ECONNREFUSED)
				time.Sleep(10 * time.Minute)
				h = startWith(t, s.inBubble(t), Config{Kinds: allKinds, Saved: savedIn(path, "1", allKinds)})
				synctest.Wait()
				if got := h.all(); len(got) != 1 || got[0].in != saved || got[0].at != 0 || !got[0].unlisted {
					t.Fatalf("published %+v, want %s at once, as not listed", got, saved)
				}
				if got := h.age(t); got != 600 {
					t.Errorf("age %v, want the 600 s since the state was current", got)
				}
				if got := h.source(t); got != fromCache {
					t.Errorf("source %q", got)
				}
				s.remove(pod("b", "10.0.0.2"), denyAll("deny"))
				s.add(pod("c", "10.0.0.2"), denyAll("deny2"))
				s.leave(nil)
				time.Sleep(retryMax)
				synctest.Wait()
				const want = "anp/p banp/default cnp/q node/n np/deny2 ns/x pod/a=10.0.0.1 pod/c=10.0.0.2"
				if got := h.all(); len(got) != 2 || got[1].in != want || got[1].unlisted {
					t.Errorf("published %+v, want %s in one step, as listed", got, want)
				}
				if got := h.source(t); got != fromSource {
					t.Errorf("source %q", got)
				}
			})
		})
	}
}

// TestTheSavedStateWaitsWhereItShould: an agent that takes over from another one has time.
func TestTheSavedStateWaitsWhereItShould(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "snapshot")
		s := newServer(true)
		s.add(pod("a", "10.0.0.1"))
		h := startWith(t, s.inBubble(t), Config{Saved: savedIn(path, "1", nil)})
		synctest.Wait()
		h.cancel()
		<-h.done
		s.add(pod("b", "10.0.0.2"))
		h = startWith(t, s.inBubble(t), Config{Saved: savedIn(path, "1", nil), SavedAfter: 5 * time.Second})
		time.Sleep(time.Minute)
		if got := h.all(); len(got) != 1 || got[0].in != "pod/a=10.0.0.1 pod/b=10.0.0.2" {
			t.Errorf("published %v, want what the server says alone", got)
		}
		h.cancel()
		<-h.done
		s.leave(syscall.ECONNREFUSED)
		h = startWith(t, s.inBubble(t), Config{Saved: savedIn(path, "1", nil), SavedAfter: 5 * time.Second})
		time.Sleep(time.Minute)
		if got := h.all(); len(got) != 1 || got[0].at != 5*time.Second {
			t.Errorf("published %v, want the saved state after 5 s", got)
		}
	})
}

// TestAfterABootTheNodesOwnPodsHaveTheAddressesOfTheirSandboxes: addresses in the status are
// from before the boot.
func TestAfterABootTheNodesOwnPodsHaveTheAddressesOfTheirSandboxes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "snapshot")
		s := newServer(true)
		near, far := pod("near", "10.0.0.1"), pod("far", "10.0.1.1")
		far.Spec.NodeName = "other"
		s.add(near, far, denyAll("deny"))
		h := startWith(t, s.inBubble(t), Config{Saved: savedIn(path, "1", nil)})
		synctest.Wait()
		h.cancel()
		<-h.done
		s.leave(syscall.ECONNREFUSED)
		h = startWith(t, s.inBubble(t), Config{Saved: savedIn(path, "2", nil)})
		synctest.Wait()
		if got, want := h.last(t).in, "np/deny pod/far=10.0.1.1 pod/near"; got != want {
			t.Errorf("in force is %s, want %s", got, want)
		}
		h.SetSandboxes([]clusterstate.Sandbox{{Namespace: "x", Name: "near", UID: near.UID, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.7")}}})
		synctest.Wait()
		if got := len(h.all()); got != 2 {
			t.Errorf("%d snapshots, want another one with the sandbox", got)
		}
	})
}

// TestAnAgentThatEndsLeavesTheStateOfItsSuccessor: the successor is often of a newer version,
// and the next start reads its format.
func TestAnAgentThatEndsLeavesTheStateOfItsSuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "snapshot")
		s := newServer(true)
		s.add(pod("a", "10.0.0.1"))
		h := startWith(t, s.inBubble(t), Config{Saved: savedIn(path, "1", nil)})
		time.Sleep(time.Minute)
		for range 2 { // the second file may get the number that the agent's had
			if err := savedIn(path, "1", nil).Write(&statefile.State{}); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		h.cancel()
		<-h.done
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%v: the file of the other agent was replaced", err)
		}
	})
}

// TestAnOutageHasChangesSavedAtOnce: an agent that is killed then starts with what it knew.
func TestAnOutageHasChangesSavedAtOnce(t *testing.T) {
	for name, outage := range outages {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "snapshot")
				s := newServer(true)
				s.add(pod("a", "10.0.0.1"))
				startWith(t, s.inBubble(t), Config{Saved: savedIn(path, "1", nil)})
				time.Sleep(time.Minute)
				s.add(pod("b", "10.0.0.2"))
				time.Sleep(time.Second)
				outage.begin(s)
				time.Sleep(time.Second / 2)
				synctest.Wait()
				h := startWith(t, s.inBubble(t), Config{Saved: savedIn(path, "1", nil)}) // while the other one has not ended
				synctest.Wait()
				if got, want := h.last(t).in, "pod/a=10.0.0.1 pod/b=10.0.0.2"; got != want {
					t.Errorf("in force is %s, want %s", got, want)
				}
			})
		})
	}
}

// TestTheStateIsSavedAtABoundedPace counts files: each save creates a new one.
func TestTheStateIsSavedAtABoundedPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "snapshot")
		s := newServer(true)
		startWith(t, s.inBubble(t), Config{Saved: savedIn(path, "1", nil)})
		files := func(during time.Duration, change func(i int)) (n int) {
			t.Helper()
			synctest.Wait()
			var last os.FileInfo
			for i := range int(during / (500 * time.Millisecond)) {
				change(i)
				time.Sleep(500 * time.Millisecond)
				synctest.Wait()
				now, err := os.Stat(path)
				if err != nil {
					continue
				}
				if last != nil && !os.SameFile(last, now) {
					n++
				}
				last = now
			}
			return n
		}
		files(20*time.Second, func(int) {})
		a := pod("a", "10.0.0.1")
		if got := files(100*time.Second, func(i int) {
			a = pod("a", "10.0.0.1")
			a.Labels = map[string]string{"i": strings.Repeat("x", i%50)}
			s.change([]watch.EventType{watch.Modified}, a)
		}); got < 8 || got > 10 {
			t.Errorf("saved %d times in 100 s in which a pod changed, want once in 10 s", got)
		}
		files(20*time.Second, func(int) {})
		if got := files(20*time.Second, func(i int) {
			p := denyAll("deny")
			p.Spec.PodSelector.MatchLabels = map[string]string{"i": strings.Repeat("x", i%50)}
			s.change([]watch.EventType{watch.Modified}, p)
		}); got < 15 || got > 20 {
			t.Errorf("saved %d times in 20 s in which a policy changed, want once a second", got)
		}
		files(20*time.Second, func(int) {})
		if got := files(time.Hour, func(int) {}); got != 4 {
			t.Errorf("saved %d times in an hour without changes, want 4", got)
		}
	})
}
