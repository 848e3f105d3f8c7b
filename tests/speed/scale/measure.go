package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"sigs.k8s.io/kube-network-policies/tests/packets/apiserver"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/process"
	"sigs.k8s.io/kube-network-policies/tests/speed/bench/results"
)

// readyTimeout limits the time in which an agent reads the cluster.
const readyTimeout = 3 * time.Minute

// measurement is one run.
type measurement struct {
	*environment
	options

	out    io.Writer
	client *apiserver.Client // the agent, as seen by the API server
	agent  *lab.Agent
	churn  *churn
	perPod int     // in bytes
	usage  []value // CPU time and traffic while the cluster changes
}

type value = results.Value

// print prints a measurement of a cluster of this size.
func (m *measurement) print(name string, count int, values ...value) {
	if m.size.shape != "spread" {
		name += "/" + m.size.shape
	}
	fmt.Fprintln(m.out, results.Line{Name: name + "/" + m.size.String(), Count: count, Values: values})
}

// heap measures the memory of a pod as the difference between the heap with all pods and
// the heap with none.
func (m *measurement) heap(ctx context.Context) error {
	var heaps []int
	for _, prefix := range []string{"", apiserver.WithoutPods} {
		path, err := m.kubeconfig("heap", prefix)
		if err != nil {
			return err
		}
		bytes, err := m.heapOf(ctx, path)
		if err != nil {
			return err
		}
		heaps = append(heaps, bytes)
	}
	m.perPod = (heaps[0] - heaps[1]) / m.size.pods
	return nil
}

// start starts the agent, prints its costs, and begins to change the cluster.
func (m *measurement) start(ctx context.Context) error {
	s, err := m.startAgent(ctx)
	if err != nil {
		return err
	}
	m.print("Start", 1, s.values()...)
	m.churn = newChurn(m.api, m.size)
	return nil
}

// startup is the cost of starting an agent.
type startup struct {
	began, ready time.Time
	lists        []apiserver.List
}

// startAgent starts an agent and waits until it is ready.
func (m *measurement) startAgent(ctx context.Context) (s startup, err error) {
	path, err := m.kubeconfig("agent", "")
	if err != nil {
		return s, err
	}
	before := len(m.client.Lists())
	s.began = time.Now()
	m.agent, err = m.node.StartAgent(lab.AgentConfig{Binary: m.options.agent, Args: []string{"--kubeconfig", path}})
	if err != nil {
		return s, err
	}
	limited, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if err := m.agent.WaitReady(limited); err != nil {
		return s, err
	}
	s.ready, s.lists = time.Now(), m.client.Lists()[before:]
	return s, nil
}

func (s startup) values() []value {
	last := slices.MaxFunc(s.lists, func(a, b apiserver.List) int { return a.Ended.Compare(b.Ended) })
	var all, pods apiserver.List
	for _, l := range s.lists {
		all.Objects, all.Bytes = all.Objects+l.Objects, all.Bytes+l.Bytes
		if l.Kind == "Pod" {
			pods.Objects, pods.Bytes = pods.Objects+l.Objects, pods.Bytes+l.Bytes
		}
	}
	return []value{
		{Number: float64(s.ready.Sub(last.Ended)), Unit: "ns/op"},
		{Number: float64(s.ready.Sub(s.began)), Unit: "whole-ns"},
		{Number: float64(len(s.lists)), Unit: "lists"},
		{Number: float64(all.Bytes), Unit: "list-B"},
		{Number: float64(pods.Objects), Unit: "listed-pods"},
		{Number: float64(pods.Bytes), Unit: "pod-list-B"},
	}
}

// load measures the cost of changes for the agent and the API server.
func (m *measurement) load(ctx context.Context) error {
	resident, peak, err := m.measureUsage(ctx)
	if err != nil {
		return err
	}
	m.print("Memory", m.size.pods,
		value{Number: float64(m.perPod), Unit: "B/pod"},
		value{Number: float64(resident), Unit: "rss-B"},
		value{Number: float64(peak), Unit: "rss-peak-B"})
	return nil
}

// measureUsage measures m.usage while the cluster changes. It returns the resident memory
// of the agent before or afterwards, whichever is more, and its maximum, in bytes.
func (m *measurement) measureUsage(ctx context.Context) (memory, peak int, err error) {
	settled, _, err := process.Resident(m.agent.PID())
	if err != nil {
		return 0, 0, err
	}
	before, err := m.account(ctx)
	if err != nil {
		return 0, 0, err
	}
	limited, cancel := context.WithTimeout(ctx, m.during)
	defer cancel()
	if err := keepChanging(limited, m.churn, m.rate); err != nil {
		return 0, 0, err
	}
	after, err := m.account(ctx)
	if err != nil {
		return 0, 0, err
	}
	m.usage = after.since(before)
	now, peak, err := process.Resident(m.agent.PID())
	return max(settled, now), peak, err
}

// account is the usage so far.
type account struct {
	at               time.Time
	cpu              time.Duration
	changes, watches int
	sent, events     int64
	snapshots        float64
}

func (m *measurement) account(ctx context.Context) (a account, err error) {
	a = account{at: time.Now(), changes: m.churn.done, watches: m.client.Watches(), sent: m.client.Sent(), events: m.client.Events()}
	if a.cpu, err = process.CPUTime(m.agent.PID()); err != nil {
		return a, err
	}
	metrics, err := m.agent.Metrics(ctx)
	a.snapshots = metrics.Sum("netpol_snapshot_latency_seconds_count")
	return a, err
}

// since returns the usage between two accounts.
func (a account) since(before account) []value {
	seconds := a.at.Sub(before.at).Seconds()
	changes := float64(a.changes - before.changes)
	cpu := a.cpu - before.cpu
	return []value{
		{Number: 100 * cpu.Seconds() / seconds, Unit: "core-percent"},
		{Number: float64(cpu) / changes, Unit: "cpu-ns/change"},
		{Number: changes / seconds, Unit: "changes/s"},
		{Number: (a.snapshots - before.snapshots) / seconds, Unit: "snapshots/s"},
		{Number: float64(a.events-before.events) / seconds, Unit: "events/s"},
		{Number: float64(a.sent-before.sent) / seconds, Unit: "watch-B/s"},
		{Number: float64(a.watches), Unit: "watches"},
	}
}

// calmRate is the maximum number of changes per second of a calm cluster: none of them
// waits for the pace at which a connection is read.
const calmRate = 40

// calm measures latencies while the cluster changes little.
func (m *measurement) calm(ctx context.Context) error {
	return m.latencies(ctx, "Calm", min(m.rate, calmRate), nil)
}

// changing measures latencies while the cluster changes at the rate for which m.usage was
// measured.
func (m *measurement) changing(ctx context.Context) error {
	return m.latencies(ctx, "", m.rate, m.usage)
}

// revoking measures how long an allowed flow continues after a policy denies it, while the
// cluster changes. It must run before the measurements that leave tens of thousands of
// flows in the kernel, because the same policies deny these.
func (m *measurement) revoking(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return keepChanging(ctx, m.churn, m.rate) })
	group.Go(func() error {
		defer cancel()
		return m.latenciesOf(ctx, "", "Revocation", m.revocations(), nil)
	})
	return group.Wait()
}

// latencies measures how long changes take to affect packets while the cluster keeps
// changing at a rate. The names of results begin with prefix. usage is printed with the
// results of pods.
func (m *measurement) latencies(ctx context.Context, prefix string, rate int, usage []value) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return keepChanging(ctx, m.churn, rate) })
	group.Go(func() error {
		defer cancel()
		if err := m.latenciesOf(ctx, prefix, "PodChange", m.podFlips(), usage); err != nil {
			return err
		}
		return m.latenciesOf(ctx, prefix, "PolicyChange", m.policyFlips(), nil)
	})
	return group.Wait()
}

// latenciesOf prints the latencies of each of flips, and of all of them.
func (m *measurement) latenciesOf(ctx context.Context, prefix, name string, flips []flip, more []value) error {
	var all latencies
	for _, f := range flips {
		l, err := m.measure(ctx, f, m.flips)
		if err != nil {
			return err
		}
		m.print(prefix+f.name, len(l), l.values()...)
		all = append(all, l...)
	}
	m.print(prefix+name, len(all), append(all.values(), more...)...)
	return nil
}

func (l latencies) values() []value {
	return []value{
		{Number: float64(l.quantile(50)), Unit: "p50-ns"},
		{Number: float64(l.quantile(99)), Unit: "p99-ns"},
		{Number: float64(slices.Max(l)), Unit: "max-ns"},
	}
}
