package nodecheck

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
)

var (
	inRange   = []netip.Addr{netip.MustParseAddr("10.244.1.2")}
	elsewhere = []netip.Addr{netip.MustParseAddr("10.8.0.2"), netip.MustParseAddr("fd00::2")}
	podCIDRs  = []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:1::/64")}
)

func causesOf(problems []Problem) []Cause {
	var causes []Cause
	for _, p := range problems {
		causes = append(causes, p.Cause)
	}
	return causes
}

// Each case is a sequence of facts, and the problems that the last check finds.
func TestFactsThatDoNotFit(t *testing.T) {
	counted := func(steered, received uint64) module.Facts {
		return module.Facts{Holds: true, Steered: steered, Received: received}
	}
	for name, tc := range map[string]struct {
		looks []module.Facts
		want  []Cause
	}{
		"a new node":                       {looks: []module.Facts{{Ranges: podCIDRs, Unlinked: true}, {Ranges: podCIDRs, Unlinked: true}}},
		"another Node":                     {[]module.Facts{{OwnNode: errors.New("none")}}, []Cause{OwnNode}},
		"pods in the ranges":               {looks: []module.Facts{{Pods: inRange, Ranges: podCIDRs}, {Pods: inRange, Ranges: podCIDRs}}},
		"one pod in the ranges is enough":  {looks: []module.Facts{{Pods: append(inRange, elsewhere...), Ranges: podCIDRs}, {Pods: append(inRange, elsewhere...), Ranges: podCIDRs}}},
		"a Node without ranges":            {looks: []module.Facts{{Pods: elsewhere}, {Pods: elsewhere}}},
		"no pod in the ranges":             {[]module.Facts{{Pods: elsewhere, Ranges: podCIDRs}, {Pods: elsewhere, Ranges: podCIDRs}}, []Cause{PodRanges}},
		"only for a moment":                {looks: []module.Facts{{Pods: elsewhere, Ranges: podCIDRs}, {Pods: inRange, Ranges: podCIDRs}}},
		"the CNI cache has the addresses":  {looks: []module.Facts{{Pods: elsewhere, Ranges: podCIDRs, Sandboxed: true}, {Pods: elsewhere, Ranges: podCIDRs, Sandboxed: true}}},
		"no interface":                     {[]module.Facts{{Pods: inRange, Unlinked: true}, {Pods: inRange, Unlinked: true}}, []Cause{PodInterface}},
		"the interface of a pod that ends": {looks: []module.Facts{{Pods: inRange, Unlinked: true}, {Pods: inRange}}},
		"conflicts about addresses":        {[]module.Facts{{Conflicts: 1}, {Conflicts: 2}}, []Cause{Addresses}},
		"a conflict for a moment":          {looks: []module.Facts{{}, {Conflicts: 1}}},
		"no packets":                       {looks: []module.Facts{counted(5, 5), counted(5, 5), counted(5, 5)}},
		"packets that arrive":              {looks: []module.Facts{counted(5, 5), counted(9, 9), counted(9, 9)}},
		"packets that arrive later":        {looks: []module.Facts{counted(5, 5), counted(9, 5), counted(9, 9)}},
		"packets that do not arrive":       {[]module.Facts{counted(5, 5), counted(9, 5), counted(9, 5)}, []Cause{Queue}},
		"they still do not":                {[]module.Facts{counted(5, 5), counted(9, 5), counted(9, 5), counted(9, 5)}, []Cause{Queue}},
		"they do again":                    {looks: []module.Facts{counted(5, 5), counted(9, 5), counted(9, 5), counted(9, 6)}},
		"a table that is new":              {looks: []module.Facts{counted(5, 5), counted(0, 5), counted(0, 5)}},
		"another agent has the table":      {looks: []module.Facts{counted(5, 5), {Steered: 9}, {Steered: 12}}},
		"the counts of another agent":      {looks: []module.Facts{{}, counted(9, 0), counted(9, 0)}},
	} {
		t.Run(name, func(t *testing.T) {
			var c comparison
			var got []Problem
			for _, facts := range tc.looks {
				got = c.check(facts)
			}
			if !slices.Equal(causesOf(got), tc.want) {
				t.Errorf("found %v, want %v", got, tc.want)
			}
		})
	}
}

// A problem of the agent's own Node is found at once. A problem of a queue makes the agent not ready.
func TestAProblemIsLoggedOnceAndEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		ctx, stop := context.WithCancel(t.Context())
		var lines []string
		ctx = klog.NewContext(ctx, funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{}))
		var facts atomic.Pointer[module.Facts]
		facts.Store(&module.Facts{OwnNode: errors.New(`no Node "n"`)})
		c := New(newFake(), func() module.Facts { return *facts.Load() }, reg)
		ended := make(chan error)
		go func() { ended <- c.Run(ctx) }()
		expect := func(cause Cause, want float64, logged int) {
			t.Helper()
			synctest.Wait()
			if got := testutil.ToFloat64(c.gauge.WithLabelValues(string(cause))); got != want || len(lines) != logged {
				t.Errorf("%v problems of cause %s, want %v; log: %q, want %d lines", got, cause, want, lines, logged)
			}
		}
		c.Poke()
		expect(OwnNode, 1, 1)
		if !strings.Contains(lines[0], `no Node`) {
			t.Errorf("the log says %q", lines[0])
		}
		time.Sleep(10 * interval)
		expect(OwnNode, 1, 1)
		facts.Store(&module.Facts{Holds: true, Steered: 1})
		c.Poke()
		expect(OwnNode, 0, 1)
		time.Sleep(interval)
		synctest.Wait() // until it is checked
		facts.Store(&module.Facts{Holds: true, Steered: 2})
		time.Sleep(2 * interval)
		expect(Queue, 1, 2)
		if c.Healthy() == nil {
			t.Error("healthy although no packet reaches the agent")
		}
		facts.Store(&module.Facts{Holds: true, Steered: 3, Received: 1})
		time.Sleep(interval)
		expect(Queue, 0, 2)
		if err := c.Healthy(); err != nil {
			t.Error(err)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
