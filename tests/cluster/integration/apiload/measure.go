package main

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/controlplane"
	"sigs.k8s.io/kube-network-policies/tests/speed/scale/model"
	"sigs.k8s.io/kube-network-policies/tests/speed/scale/process"
)

const (
	// startTimeout bounds how long the start of all agents takes.
	startTimeout = 10 * time.Minute
	// calm is the longest pause after all agents have started.
	calm = 15 * time.Second
)

// rows are the measured figures of each way.
var rows = []string{
	"watches of pods of an agent",
	"pods in lists of an agent",
	"lists of an agent, MB",
	"CPU for lists of an agent, s",
	"CPU to begin a watch, ms",
	"CPU without changes, % of a core",
	"changes/s",
	"events/s",
	"bookmarks/s",
	"bytes out, KB/s",
	"CPU, % of a core",
	"resident memory, MB",
	"requests that failed",
}

// figures are the values of rows with one way.
type figures struct {
	way    string
	values []float64
}

// account is the usage so far.
type account struct {
	at                       time.Time
	cpu                      time.Duration
	changes                  int
	events, bookmarks, bytes int64
}

// measure restarts the API server and measures the cost of a way.
func (o options) measure(ctx context.Context, plane *controlplane.ControlPlane, c *cluster, w way) (f figures, err error) {
	if err := plane.StopAPIServer(); err != nil {
		return f, err
	}
	if err := plane.StartAPIServer(ctx); err != nil {
		return f, err
	}
	version, err := c.warm(ctx)
	if err != nil {
		return f, err
	}
	agents := newFleet(plane.Admin())
	now := func() (a account, err error) {
		a = account{at: time.Now(), changes: c.changes, events: agents.events.Load(), bytes: agents.bytes.Load()}
		a.bookmarks = agents.versions.Load() - a.events
		a.cpu, err = process.CPUTime(plane.APIServerPID())
		return a, err
	}
	running, stop := context.WithCancel(ctx)
	defer agents.wait()
	defer stop()
	before, err := now()
	if err != nil {
		return f, err
	}
	agentsOf := c.model.PodsOfNodes(o.Nodes)
	listing := min(o.lists, o.Nodes)
	if err := o.startAgents(running, agents, c, w, agentsOf[:listing], 0, ""); err != nil {
		return f, err
	}
	listed, err := now()
	if err != nil {
		return f, err
	}
	watches := agents.watches.Load()
	if err := o.startAgents(running, agents, c, w, agentsOf[listing:], listing, version); err != nil {
		return f, err
	}
	begun, err := now()
	if err != nil {
		return f, err
	}
	watches = agents.watches.Load() - watches
	if err := c.keepChanging(ctx, 0, min(calm, o.during)); err != nil {
		return f, err
	}
	idle, err := now()
	if err != nil {
		return f, err
	}
	if err := c.keepChanging(ctx, o.rate, o.during); err != nil {
		return f, err
	}
	end, err := now()
	if err != nil {
		return f, err
	}
	resident, _, err := process.Resident(plane.APIServerPID())
	if err != nil {
		return f, err
	}
	percent := func(from, to account) float64 {
		return 100 * (to.cpu - from.cpu).Seconds() / to.at.Sub(from.at).Seconds()
	}
	seconds, each := end.at.Sub(idle.at).Seconds(), float64(listing)
	return figures{w.name, []float64{
		float64(agents.pods.Load()) / float64(o.Nodes),
		float64(agents.listedPods.Load()) / each,
		float64(listed.bytes) / each / 1e6,
		(listed.cpu - before.cpu).Seconds() / each,
		1e3 * (begun.cpu - listed.cpu).Seconds() / float64(max(1, watches)),
		percent(begun, idle),
		float64(end.changes-idle.changes) / seconds,
		float64(end.events-idle.events) / seconds,
		float64(end.bookmarks-idle.bookmarks) / seconds,
		float64(end.bytes-idle.bytes) / 1e3 / seconds,
		percent(idle, end),
		float64(resident) / 1e6,
		float64(agents.failed.Load()),
	}}, nil
}

// startAgents starts agents on nodes, from first on, with their pods. It returns when all
// lists are complete.
func (o options) startAgents(ctx context.Context, agents *fleet, c *cluster, w way, nodes [][]model.Pod, first int, from string) error {
	if w.watches == nil {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	group, limited := errgroup.WithContext(limited)
	group.SetLimit(startAtOnce)
	for i, pods := range nodes {
		watches := w.watches(c.model, first+i, pods)
		group.Go(func() error { return agents.start(ctx, limited, first+i, watches, from) })
	}
	return group.Wait()
}
