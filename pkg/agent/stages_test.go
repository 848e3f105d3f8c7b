package agent

import (
	"context"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/agent/enforce"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/addressreuse"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer"
)

// newTestAgent returns an agent that checks no sources, and whose loops do not run.
func newTestAgent(t testing.TB, reg *prometheus.Registry) *agent {
	t.Helper()
	cfg := Config{SourceCheckExempt: []string{EveryInterface}}
	a := &agent{cfg: cfg, reg: reg, blocker: newTestBlocker(t, reg), enforcer: enforce.New(enforce.Config{}), metrics: newMetrics(reg)}
	ready := make(chan struct{})
	a.ready, a.open = ready, func() {
		select {
		case <-ready:
		default:
			close(ready)
		}
	}
	a.steering = &steering{steerer: newIdleSteerer(t, reg)}
	var err error
	a.steering.sources, err = newSources(cfg, steer.Capabilities{}, a.steering.resteer, a.setInterfaces, reg, a.logger)
	a.steering.sources.filterBridges = a.filterBridges
	if err != nil {
		t.Fatal(err)
	}
	a.steering.reuse = addressreuse.New(addressreuse.Config{Hold: a.enforcer.SetUnknown})
	a.stages = slices.Concat(a.services(), a.publishing(), a.cluster())
	return a
}

// newIdleSteerer returns a Steerer that does not run: it keeps its desired state, and never accesses
// the kernel.
func newIdleSteerer(t testing.TB, reg prometheus.Registerer) *steer.Steerer {
	t.Helper()
	steerer, err := steer.New(steer.Config{Queue: 100, Queues: 1, Mark: steer.DefaultMark, BlockMark: steer.DefaultLowerMark, Registerer: reg}, steer.Capabilities{})
	if err != nil {
		t.Fatal(err)
	}
	return steerer
}

// TestStagesAreThoseOfThePage: docs/architecture.md numbers the stages in this order.
func TestStagesAreThoseOfThePage(t *testing.T) {
	page, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Publishing a snapshot\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var want []string
	for _, m := range regexp.MustCompile(`(?m)^\d+\. \*\*(.+?)\*\*`).FindAllStringSubmatch(section, -1) {
		want = append(want, strings.ToLower(strings.TrimRight(m[1], ".:")))
	}
	var got []string
	all := newTestAgent(t, prometheus.NewRegistry()).stages
	for _, s := range all {
		if s.follow == nil {
			continue
		}
		got = append(got, s.name)
		if s.why == "" {
			t.Errorf("%s: why does it stand here?", s.name)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("a snapshot is followed by\n%q\nand docs/architecture.md numbers\n%q", got, want)
	}
	if all[len(all)-1].joint {
		t.Error("the last stage is joint: nothing else would be written any more")
	}
}

// TestStagesAtTheEnd: all stages begin in order, and run until all have left.
func TestStagesAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events []string
		note := func(event string) { events = append(events, event) }
		wait := []loop{func(ctx context.Context) error { <-ctx.Done(); return nil }}
		l := stages{
			{name: "first", begin: func(context.Context) { note("first begins") }, loops: wait, leave: func() { time.Sleep(time.Second); note("first leaves") }},
			{name: "off", off: true, begin: func(context.Context) { note("off begins") }},
			{name: "second", begin: func(context.Context) { note("second begins") }, loops: wait, leave: func() { note("second leaves") }},
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- l.run(ctx) }()
		synctest.Wait()
		cancel()
		synctest.Wait()
		select {
		case <-done:
			t.Error("the loops end before a stage has left")
		default:
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if want := []string{"first begins", "second begins", "first leaves", "second leaves"}; !slices.Equal(events, want) {
			t.Errorf("events %q, want %q", events, want)
		}
	})
}

// TestJointStages: joint stages hold the lock without a gap, and later stages do not hold it.
func TestJointStages(t *testing.T) {
	var events []string
	follow := func(name string) func(context.Context, change) {
		return func(context.Context, change) { events = append(events, name) }
	}
	l := stages{
		{follow: follow("names")},
		{name: "follows nothing"},
		{follow: follow("owners"), joint: true},
		{follow: follow("off"), joint: true, off: true},
		{follow: follow("evaluator"), joint: true},
		{follow: follow("report")},
	}
	l.follow(t.Context(), change{}, lockEvents{&events})
	if want := []string{"names", "lock", "owners", "evaluator", "unlock", "report"}; !slices.Equal(events, want) {
		t.Errorf("events %q, want %q", events, want)
	}
}

// lockEvents is a lock that records its calls.
type lockEvents struct{ to *[]string }

func (l lockEvents) Lock()   { *l.to = append(*l.to, "lock") }
func (l lockEvents) Unlock() { *l.to = append(*l.to, "unlock") }
