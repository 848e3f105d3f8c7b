package enforce

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// logged is what was logged, and when.
type logged struct {
	mu    sync.Mutex
	lines []string
	times []time.Time
}

func (l *logged) logger() logr.Logger {
	return funcr.New(func(_, args string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lines, l.times = append(l.lines, args), append(l.times, time.Now())
	}, funcr.Options{})
}

// with returns the lines that have the text.
func (l *logged) with(text string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// pods is a snapshot of the isolated pod and n open ones, and their addresses.
func pods(n int) (*policy.Snapshot, []netip.Addr) {
	at := map[netip.Addr]*policy.Endpoint{isolated: snapshot().Endpoint(isolated)}
	var addrs []netip.Addr
	for i := range n {
		addr := netip.AddrFrom4([4]byte{10, 1, byte(i / 256), byte(i)})
		at[addr] = &policy.Endpoint{Namespace: "x", Name: fmt.Sprintf("pod-%d", i)}
		addrs = append(addrs, addr)
	}
	return policy.New(policy.Model{Endpoints: policy.NewEndpoints(at)}), addrs
}

// denying returns an Enforcer that logs denials.
func denying(s *policy.Snapshot) (*Enforcer, *logged) {
	log := &logged{}
	e := New(Config{Registerer: prometheus.NewRegistry(), Logger: log.logger(), LogDenied: true})
	e.Swap(s)
	return e, log
}

func (e *Enforcer) deny(src netip.Addr) { e.Decide(Input{Payload: tcp(src, isolated, 81)}) }

func TestADenialNamesAllPoliciesThatIsolate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, log := denying(snapshot())
		e.Decide(Input{Payload: tcp(open, isolated, 80)}) // allowed: not logged
		e.deny(open)
		const want = `"level"=0 "msg"="Packet denied" "protocol"="TCP" "src"="10.0.0.2:0" "srcPod"="x/open" "dst"="10.0.0.1:81" "dstPod"="x/isolated" "direction"="ingress" "tier"="networkpolicy" "reason"="isolated" "policies"=["x/web" "x/closed"]`
		if got := log.with(""); len(got) != 1 || got[0] != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	})
}

func TestADenialNamesTheRule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, log := denying(guarded(open))
		e.Decide(Input{Payload: tcp(open, nodeNet.Addr().Next(), 80)})
		if got := log.with(`"tier"="admin" "reason"="rule matched" "policy"="AdminNetworkPolicy/guard" "rule"=0`); len(got) != 1 {
			t.Errorf("logged %s", log.with(""))
		}
	})
}

func TestALineNamesABoundedNumberOfPolicies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := snapshot()
		chain := s.Endpoint(isolated).Ingress
		chain.Policies = nil
		for i := range namedPolicies + 3 {
			chain.Policies = append(chain.Policies, &policy.Ref{Namespace: "x", Name: fmt.Sprintf("policy-%d", i)})
		}
		e, log := denying(s)
		e.deny(open)
		if got := log.with(`"x/policy-19"] "morePolicies"=3`); len(got) != 1 {
			t.Errorf("logged %s", log.with(""))
		}
	})
}

func TestNoSecondHasMoreThanTenDenials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, addrs := pods(500)
		e, log := denying(s)
		for i := range 5000 { // in five seconds
			e.deny(addrs[i%len(addrs)])
			time.Sleep(time.Millisecond)
		}
		if n := len(log.times); n != 5*denialsPerSecond {
			t.Errorf("%d lines in five seconds, want %d", n, 5*denialsPerSecond)
		}
		for i := denialsPerSecond; i < len(log.times); i++ {
			if d := log.times[i].Sub(log.times[i-denialsPerSecond]); d < time.Second {
				t.Fatalf("%d lines in %s", denialsPerSecond+1, d)
			}
		}
	})
}

func TestAScannerHidesNoOtherPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, addrs := pods(20)
		scanners, others := addrs[:4], addrs[4:]
		e, log := denying(s)
		for range 1000 {
			for _, scanner := range scanners {
				e.deny(scanner)
			}
		}
		for i, addr := range others {
			e.deny(addr)
			if got := log.with(`"srcPod"="x/` + s.Endpoint(addr).Name + `"`); len(got) != 1 {
				t.Errorf("pod %d has %d lines, want 1", i, len(got))
			}
			for range 100 {
				e.deny(scanners[i%len(scanners)])
			}
			time.Sleep(time.Second / (denialsPerSecond - repeatsPerSecond))
		}
	})
}

func TestWhatIsNotLoggedIsSaidEveryTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, addrs := pods(2)
		e, log := denying(s)
		outside := netip.MustParseAddr("198.51.100.1")
		for i := range 1000 {
			e.deny(addrs[0])
			e.Decide(Input{Payload: []byte{1}})
			if i < 500 {
				e.deny(outside)
				outside = outside.Next() // forged
			}
		}
		e.deny(addrs[1]) // logged
		if got := log.with("not logged"); len(got) > 0 {
			t.Errorf("said at once: %s", got)
		}
		before := len(log.with(""))
		time.Sleep(denialInterval)
		synctest.Wait()
		want := fmt.Sprintf(`"msg"="Denied packets were not logged" "packets"=%d "interval"="10s" "sources"=3 "most"=["other: 998" "from x/pod-0: 998" "to x/isolated: 499"]`, 2501-before)
		if got := log.with("not logged"); len(got) != 1 || !strings.Contains(got[0], want) {
			t.Errorf("got %s\nwant %s", got, want)
		}
		time.Sleep(10 * denialInterval)
		if got := log.with("not logged"); len(got) != 1 {
			t.Errorf("said again though nothing was denied: %s", got)
		}
		e.deny(addrs[0])
		if got := log.with("pod-0"); len(got) < 3 {
			t.Error("no line after an interval")
		}
	})
}

func TestSourcesOfDenialsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, addrs := pods(3 * denialSources)
		e, _ := denying(s)
		for _, addr := range addrs {
			e.deny(addr)
		}
		if n := len(e.denials.sources); n > denialSources+1 {
			t.Errorf("%d sources are known, want at most %d", n, denialSources+1)
		}
	})
}

func TestDenialsThatAreNotLoggedDoNotAllocate(t *testing.T) {
	s, addrs := pods(2 * denialSources)
	e := New(Config{Registerer: prometheus.NewRegistry(), Logger: logr.Discard(), LogDenied: true})
	e.Swap(s)
	for range denialsPerSecond {
		e.denials.reserveLine(time.Now().Add(time.Hour), false) // no line is free
	}
	e.deny(addrs[0]) // starts the interval
	payload, i := tcp(open, isolated, 81), 0
	deny := func() {
		i++
		copy(payload[12:], addrs[i].AsSlice())
		e.Decide(Input{Payload: payload})
	}
	if n := testing.AllocsPerRun(denialSources*3/2, deny); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestUnparsableIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logged{}
		newDenialLog(log.logger(), deniedMessages).unparsable(errors.New("cut short"))
		if got := log.with(`"msg"="Packet cannot be parsed" "reason"="cut short"`); len(got) != 1 {
			t.Errorf("logged %s", log.with(""))
		}
		var none *denialLog
		none.unparsable(errors.New("cut short"))
	})
}
