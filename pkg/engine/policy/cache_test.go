package policy

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
)

// excluding returns n rules that each select all pods but one. So every peer is selected by many
// rules, and no two peers by the same ones.
func excluding(n int) []Rule {
	return repeat(n, func(i int, r *Rule) {
		r.AnyPort, r.Ports, r.Peers = false, []Port{hostilePort(i)}, []Peer{pods(fmt.Sprintf("pod!=x%d", i))}
	})
}

func peerNumber(i int) *Endpoint {
	return &Endpoint{Version: NewVersion(), Namespace: "x", Labels: NewLabels(labels.Set{"pod": fmt.Sprintf("x%d", i)})}
}

const manyBits = 14

// selectingBits returns a rule for each of manyBits labels, so there can be many pods without two
// that the same rules select.
func selectingBits() []Rule {
	return repeat(manyBits, func(i int, r *Rule) { r.Peers = []Peer{pods(fmt.Sprint("bit", i))} })
}

// peerOfBits returns a peer with a label for each bit of n.
func peerOfBits(n int) *Endpoint {
	l := labels.Set{}
	for i := range manyBits {
		if n>>i&1 != 0 {
			l[fmt.Sprint("bit", i)] = ""
		}
	}
	return &Endpoint{Version: NewVersion(), Namespace: "x", Labels: NewLabels(l)}
}

func heap() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// The heap grows by no more than the bound, including for evicted answers of pods that still exist.
func TestCacheIsBounded(t *testing.T) {
	for _, tc := range []struct {
		name         string
		rules, peers int
	}{
		{"long answers", 20000, 10000},
		{"short answers", 2, 10000},
		{"answers that do not fit", 5 << 20, 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := newIndex(excluding(2))
			var every []uint32
			for i := range tc.rules {
				every = append(every, uint32(i))
			}
			pods := make([]*Endpoint, tc.peers)
			for i := range pods {
				pods[i] = &Endpoint{Version: NewVersion()}
			}
			before := heap()
			for _, pod := range pods {
				rules := newSet(every)
				k := key{pod: pod.Version}
				x.remember(k, peer{pod: pod}, rules)
				if x.cache.bytes > maxCached && len(x.cache.answers) > 1 {
					t.Fatalf("%d bytes are cached", x.cache.bytes)
				}
				if x.cache.answers[k].known() == nil {
					t.Fatal("the latest answer is not cached")
				}
			}
			if n := len(x.cache.answers); n == len(pods) {
				t.Errorf("%d answers are cached: the test asks too little", n)
			}
			// Pods keep a small remainder of what was evicted.
			if grown, most := heap()-before, max(maxCached, x.cache.bytes)+tc.peers*64+maxCached/2; grown > most {
				t.Errorf("the heap grew by %d bytes, more than %d", grown, most)
			}
			runtime.KeepAlive(every)
			runtime.KeepAlive(x)
			runtime.KeepAlive(pods)
		})
	}
}

// Cached answers must not keep deleted pods alive, nor pods a deleted chain.
func TestCacheKeepsNoPodsAndPodsNoChains(t *testing.T) {
	x, pod := newIndex(excluding(10)), peerNumber(1)
	freed := make(chan string, 2)
	func() {
		gone, old := peerNumber(2), newIndex(excluding(10))
		x.matchPeer(&flow{peer: gone})
		old.matchPeer(&flow{peer: pod})
		runtime.AddCleanup(old, func(string) { freed <- "index" }, "")
		runtime.AddCleanup(gone, func(string) { freed <- "pod" }, "")
	}()
	for range 2 {
		runtime.GC()
		<-freed
	}
	runtime.KeepAlive(x)
	runtime.KeepAlive(pod)
}

// Several queues evaluate concurrently while answers are evicted.
func TestCacheIsForManyGoroutines(t *testing.T) {
	rules := selectingBits()
	x, chain := newIndex(rules), &Chain{Rules: rules}
	peers := make([]*Endpoint, 1<<manyBits)
	for i := range peers {
		peers[i] = peerOfBits(i)
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range peers {
				f := &flow{peer: peers[(i*7+g*13)%len(peers)]}
				var found match
				x.match(f, &found)
				if got, want := x.decide(f, &found), chain.scan(f); (got == nil) != (want == nil) || got != nil && got.Index != want.Index {
					t.Errorf("peer %v: index says %v, chain says %v", f.peer.Labels, got, want)
					return
				}
			}
		})
	}
	wg.Wait()
	if n := len(x.cache.answers); n == len(peers) {
		t.Error("nothing was evicted: the test asks too little")
	}
}

// Peers that differ only in their Version share an evaluation, and a peer is evaluated again when
// its labels change.
func TestAnotherVersionIsEvaluated(t *testing.T) {
	x := newIndex([]Rule{rule(NetworkPolicyTier, Allow, pods("pod=x1"))})
	for _, n := range []int{1, 2, 1} {
		f := &flow{peer: peerNumber(n)}
		var found match
		x.match(f, &found)
		if got := x.decide(f, &found) != nil; got != (n == 1) {
			t.Errorf("pod=x%d: matched %v", n, got)
		}
	}
}
