package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/clusterwatch"
	"sigs.k8s.io/kube-network-policies/tests/speed/bench/results"
	"sigs.k8s.io/kube-network-policies/tests/speed/scale/apiserver"
	"sigs.k8s.io/kube-network-policies/tests/speed/scale/model"
)

// way is how an agent is run in a modelled cluster.
type way struct {
	name   string
	prefix string // of paths, after the prefix of the client
	args   []string
}

// ways are the compared ways. What an agent needs without pods is the baseline of its
// memory.
var ways = []way{
	{name: "none", prefix: apiserver.WithoutPods},
	{name: "all"},
	{name: "needed", args: []string{"--pod-watches=needed"}},
}

// compare measures agents that watch all pods and agents that watch needed pods, one after
// the other on one node of a modelled cluster.
func (o options) compare(ctx context.Context, out io.Writer) error {
	for _, zipf := range []bool{false, true} {
		cfg := o.modelled()
		cfg.Zipf = zipf
		c := newModelled(cfg)
		err := o.measured(ctx, out, c.fill, func(ctx context.Context, m *measurement) error {
			m.churn = c
			for _, w := range ways {
				line, err := m.measureWay(ctx, w)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", cfg, w.name, err)
				}
				line.Name = "Agent/" + cfg.String() + "/" + w.name
				fmt.Fprintln(out, line)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// measureWay runs an agent in one way.
func (m *measurement) measureWay(ctx context.Context, w way) (line results.Line, err error) {
	m.client = m.api.Client(w.name)
	s, err := m.startAgent(ctx, m.client.Prefix()+w.prefix, w.args...)
	if err != nil {
		return line, err
	}
	memory, peak, err := m.measureUsage(ctx)
	if err != nil {
		return line, err
	}
	line.Values = append(s.values(), m.usage...)
	line.Values = append(line.Values, value{Number: float64(memory), Unit: "rss-B"}, value{Number: float64(peak), Unit: "rss-peak-B"})
	if w.prefix == "" {
		all, err := m.flipped(ctx)
		if err != nil {
			return line, err
		}
		line.Count, line.Values = len(all), append(line.Values, all.values()...)
	}
	return line, m.agent.Stop(ctx)
}

// flipped returns latencies of changes of pods and policies while the cluster changes.
func (m *measurement) flipped(ctx context.Context) (all latencies, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return keepChanging(ctx, m.churn, m.rate) })
	group.Go(func() error {
		defer cancel()
		for _, f := range append(m.podFlips(), m.policyFlips()...) {
			l, err := m.measure(ctx, f, m.flips)
			if err != nil {
				return err
			}
			all = append(all, l...)
		}
		return nil
	})
	return all, group.Wait()
}

// modelled is a modelled cluster. One of its nodes is the agent's. It is a changer.
type modelled struct {
	*model.Cluster
	own  int // the agent's node
	api  *apiserver.Server
	done int
}

// newModelled draws a cluster. As the agent's node it chooses, among some nodes, the one
// that asks for a median number of pods with --pod-watches=needed.
func newModelled(cfg model.Config) *modelled {
	c := model.Draw(cfg)
	type asking struct{ node, objects int }
	var nodes []asking
	for node, pods := range c.PodsOfNodes(min(simulatedNodes, cfg.Nodes)) {
		objects := 0
		for _, w := range c.Needed(node, pods, clusterwatch.MaxNeededWatches) {
			objects += c.Count(w)
		}
		nodes = append(nodes, asking{node, objects})
	}
	slices.SortFunc(nodes, func(a, b asking) int { return cmp.Compare(a.objects, b.objects) })
	return &modelled{Cluster: c, own: nodes[len(nodes)/2].node}
}

// fill stores all objects.
func (m *modelled) fill(server *apiserver.Server, own *corev1.Node) error {
	m.api = server
	objects := []apiserver.Object{own}
	for i := range m.Namespaces {
		objects = append(objects, m.Namespace(i))
		for _, p := range m.Policies(i) {
			objects = append(objects, p)
		}
	}
	for _, o := range objects {
		if _, err := server.Put(o); err != nil {
			return err
		}
	}
	for p := range m.Pods {
		if _, err := server.Put(m.object(p)); err != nil {
			return err
		}
	}
	return nil
}

// object returns a pod. Pods of the agent's node are on the lab's node, with addresses in
// its range.
func (m *modelled) object(p model.Pod) *corev1.Pod {
	o := m.Object(p)
	switch {
	case p.Node == m.own:
		o.Spec.NodeName = ownNode
		if len(o.Status.PodIPs) > 0 {
			host := p.Addr().As4()[3]
			model.SetAddrs(o, netip.AddrFrom4([4]byte{10, 244, 1, host}))
		}
	case o.Spec.NodeName == ownNode:
		o.Spec.NodeName = model.NodeName(m.own)
	}
	return o
}

func (m *modelled) changes() int { return m.done }

func (m *modelled) change() (err error) {
	m.done++
	if p := m.Next(); p.Stage == model.Deleted {
		_, err = m.api.Delete(m.object(p))
	} else {
		_, err = m.api.Put(m.object(p))
	}
	return err
}
