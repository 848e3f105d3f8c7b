package policy

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
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

const manyBits = 17

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

// remember evaluates the peer of f.
func remember(x *index, f *flow) {
	var m match
	x.match(f, &m)
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// The heap grows by no more than the budget, including for evicted entries of pods that still
// exist.
func TestMemoryStaysWithinItsBudget(t *testing.T) {
	const budget = 4 << 20
	for _, tc := range []struct {
		name         string
		rules, peers int
	}{
		{"long answers", 2000, 20000},
		{"short answers", 2, 100000},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := newIndex(excluding(tc.rules))
			m := NewMemory(budget)
			// The result does not depend on the number of labels: a few evaluations are enough.
			answers := make([]set, 10)
			for i := range answers {
				answers[i] = x.evaluate(peer{pod: peerNumber(i)}, 0)
			}
			pods := make([]*Endpoint, tc.peers)
			for i := range pods {
				pods[i] = &Endpoint{Version: NewVersion()}
			}
			before := heap()
			for i, pod := range pods {
				answer := set(nil).flip(rulesOf(answers[i%len(answers)]))
				m.put(x, key{index: x.id, pod: pod.Version}, peer{pod: pod}, answer, false)
				if used := m.Used(); used > budget {
					t.Fatalf("%d bytes are remembered, more than %d", used, budget)
				}
			}
			if m.Evicted() == 0 || m.Used() < budget/4 {
				t.Errorf("%d bytes remembered, %d evicted: the test asks too little", m.Used(), m.Evicted())
			}
			if grown := heap() - before; grown > budget+budget/4 {
				t.Errorf("the heap grew by %d bytes, the budget is %d", grown, budget)
			}
			runtime.KeepAlive(m)
			runtime.KeepAlive(x)
			runtime.KeepAlive(pods)
		})
	}
}

func rulesOf(s set) (rules []uint32) {
	m := match{anyPeer: s, anyPort: s}
	for i, end := m.next(0, len(s)*pageRules), len(s)*pageRules; i < end; i = m.next(i+1, end) {
		rules = append(rules, uint32(i))
	}
	return rules
}

// Entries in use are kept while unused ones are evicted.
func TestMemoryForgetsWhatWasNotUsed(t *testing.T) {
	x := newIndex(selectingBits())
	m := NewMemory(1 << 20)
	hot := &flow{peer: peerOfBits(0), memory: m}
	// Slots in the table are random. If all entries of a bucket are in use, one of them is evicted,
	// which happens once in some runs. With the eviction order reversed it happens 50 times.
	const most = 15
	forgotten := 0
	for n := range 1 << manyBits {
		remember(x, hot)
		remember(x, &flow{peer: peerOfBits(n), memory: m})
		if m.find(x, key{index: x.id}, peer{pod: hot.peer}) == nil {
			forgotten++
		}
	}
	if forgotten > most {
		t.Errorf("a peer that is always in use was forgotten %d times, want at most %d", forgotten, most)
	}
	if m.Evicted() < 1000 {
		t.Fatalf("only %d evicted: the test asks too little", m.Evicted())
	}
}

// Cached entries must not keep deleted pods, chains and policies alive.
func TestMemoryKeepsNoPodsAndNoChains(t *testing.T) {
	m := NewMemory(1 << 20)
	freed := make(chan string, 2)
	func() {
		x, pod := newIndex(excluding(10)), peerNumber(1)
		remember(x, &flow{peer: pod, memory: m})
		runtime.AddCleanup(x, func(string) { freed <- "index" }, "")
		runtime.AddCleanup(pod, func(string) { freed <- "pod" }, "")
	}()
	if m.Used() == 0 {
		t.Fatal("nothing is remembered")
	}
	for range 2 {
		runtime.GC()
		<-freed
	}
	runtime.KeepAlive(m)
}

// Several queues evaluate concurrently with evictions.
func TestMemoryIsForManyGoroutines(t *testing.T) {
	rules := excluding(50)
	x := newIndex(rules)
	chain := &Chain{Rules: rules}
	m := NewMemory(8 << 10)
	peers := make([]*Endpoint, 1000)
	for i := range peers {
		peers[i] = peerNumber(i % 100)
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 4000 {
				n := (i*7 + g*13) % len(peers)
				f := &flow{peer: peers[n], proto: packet.TCP, dstPort: uint16(2*(i%60) + 1), memory: m}
				var found match
				x.match(f, &found)
				if got, want := x.decide(f, &found), chain.scan(f); (got == nil) != (want == nil) || got != nil && got.Index != want.Index {
					t.Errorf("peer %d, port %d: index says %v, chain says %v", n, f.dstPort, got, want)
					return
				}
			}
		})
	}
	wg.Wait()
	if m.Evicted() == 0 {
		t.Error("nothing was evicted: the test asks too little")
	}
}

// Peers that differ only in their Version share an evaluation, and a peer is evaluated again when
// its labels change.
func TestAnotherVersionIsEvaluated(t *testing.T) {
	x := newIndex([]Rule{rule(NetworkPolicyTier, Allow, pods("pod=x1"))})
	m := NewMemory(1 << 20)
	for _, n := range []int{1, 2, 1} {
		f := &flow{peer: peerNumber(n), memory: m}
		var found match
		x.match(f, &found)
		if got := x.decide(f, &found) != nil; got != (n == 1) {
			t.Errorf("pod=x%d: matched %v", n, got)
		}
	}
}
