package agent

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/klog/v2/ktesting"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/cniresults"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/links"
)

// fakeLinks evaluates results by the names of their interfaces.
type fakeLinks struct {
	now, next map[string]links.Evidence // nil if they cannot be read; a missing name is refuted
	reads     int
}

func (f *fakeLinks) Read() error {
	f.reads++
	f.now = f.next
	return nil
}

func (f *fakeLinks) Evidence(names []string, _ []netip.Addr) (links.Evidence, bool) {
	e, there := f.now[names[0]]
	if !there {
		e = links.Refuted
	}
	return e, f.now != nil
}

func TestResultsOfSandboxesThatExist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		kernel := &fakeLinks{}
		r := newResults(prometheus.NewRegistry(), logger)
		r.links = kernel
		var got []string
		r.set = func(all []clusterstate.Sandbox) {
			var text []string
			for _, s := range all {
				text = append(text, fmt.Sprintf("%s=%v", s.Name, s.Proven))
			}
			got = append(got, strings.Join(text, " "))
		}
		expect := func(when string, want ...string) {
			t.Helper()
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s: passed on %q, want %q", when, got, want)
			}
			got = nil
		}
		waited := make(chan struct{})
		go func() {
			r.wait(t.Context())
			close(waited)
		}()
		named := func(name, link string) cniresults.Sandbox {
			s := cniresults.Sandbox{Name: name, Written: time.Now()}
			if link != "" {
				s.Links = []string{link}
			}
			return s
		}
		all := []cniresults.Sandbox{named("old", "gone"), named("new", "veth1"), named("plain", "")}

		r.relinked()
		r.follow(all)
		synctest.Wait()
		expect("before interfaces are read")
		select {
		case <-waited:
			t.Error("the first snapshot does not wait for interfaces")
		default:
		}

		kernel.now = map[string]links.Evidence{"veth1": links.NoEvidence}
		kernel.next = kernel.now
		r.relinked()
		<-waited
		expect("when they are read", "new=false plain=false")
		kernel.now = map[string]links.Evidence{"veth1": links.Proven}
		kernel.next = kernel.now
		r.relinked()
		r.relinked()
		expect("with a route", "new=true plain=false")
		if kernel.reads > 0 {
			t.Errorf("%d reads after reads", kernel.reads)
		}

		kernel.next = map[string]links.Evidence{"veth1": links.Proven, "veth2": links.Proven}
		r.follow(append(all, named("newest", "veth2")))
		expect("an interface that is newer than the last read", "new=true plain=false newest=true")
		kernel.now = map[string]links.Evidence{"veth2": links.Proven}
		r.relinked()
		expect("without an interface", "plain=false newest=true")

		doubts := func(d doubt) float64 { return testutil.ToFloat64(r.doubts.WithLabelValues(string(d))) }
		if got := doubts(byInterface); got != 2 {
			t.Errorf("%v doubtful results, want 2", got)
		}
		late := named("late", "")
		late.Written = time.Now().Add(2 * maxResultSkew)
		for range 2 {
			r.follow([]cniresults.Sandbox{late})
			r.misordered([]string{"x/a"})
		}
		if doubts(byInterface) != 0 || doubts(byFuture) != 1 || doubts(byOrder) != 1 {
			t.Errorf("doubts are %v, %v, %v", doubts(byInterface), doubts(byFuture), doubts(byOrder))
		}
		log := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
		for d, message := range doubtMessages {
			if n := strings.Count(log, message); n != 1 {
				t.Errorf("%s: logged %d times", d, n)
			}
		}
	})
}
