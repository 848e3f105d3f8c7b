package main

import (
	"fmt"
	"io"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/clusterwatch"
	"sigs.k8s.io/kube-network-policies/tests/speed/bench/results"
	"sigs.k8s.io/kube-network-policies/tests/speed/scale/model"
)

const (
	// simulatedNodes is the number of nodes whose watches are computed, simulatedChanges the
	// number of changes that are counted for each.
	simulatedNodes, simulatedChanges = 40, 20_000
)

// simulatedClusters are variants of a cluster.
func simulatedClusters(large model.Config) (all []model.Config) {
	for _, zipf := range []bool{false, true} {
		for _, everyone := range []int{0, 1} {
			cfg := large
			cfg.Zipf, cfg.Everyone = zipf, everyone
			all = append(all, cfg)
		}
	}
	byLabel := large
	byLabel.Zipf, byLabel.ByLabel = true, true
	return append(all, byLabel)
}

// asked is what watches of pods ask of an API server.
type asked struct {
	watches, objects int
	events, bytes    int64
}

// count adds an event for each watch that selects the pod.
func (a *asked) count(c *model.Cluster, watches []model.Watch, p model.Pod, size int) {
	for _, w := range watches {
		if c.Has(w, p) {
			a.events++
			a.bytes += int64(size)
		}
	}
}

// simulate prints, for each cluster, what nodes ask for with --pod-watches=needed as a
// share of what they ask for without. No agent runs, and the results do not depend on the
// machine.
func simulate(out io.Writer, large model.Config) {
	for _, cfg := range simulatedClusters(large) {
		fmt.Fprintln(out, simulated(cfg))
	}
}

func simulated(cfg model.Config) results.Line {
	c := model.Draw(cfg)
	policies := 0
	for i := range cfg.Namespaces {
		policies += len(c.Policies(i))
	}
	nodes := min(simulatedNodes, cfg.Nodes)
	needed, everything, named := make([][]model.Watch, nodes), 0, 0
	var part, whole asked
	for node, pods := range c.PodsOfNodes(nodes) {
		needed[node] = c.Needed(node, pods, clusterwatch.MaxNeededWatches)
		part.watches += len(needed[node])
		named += c.Named(node, pods)
		for _, w := range needed[node] {
			part.objects += c.Count(w)
			if w.PodQuery == model.All.PodQuery {
				everything++
			}
		}
	}
	whole.objects = c.Count(model.All)
	for range simulatedChanges {
		p := c.Next()
		size := c.Object(p).Size()
		whole.count(c, []model.Watch{model.All}, p, size)
		for _, watches := range needed {
			part.count(c, watches, p, size)
		}
	}
	each := float64(nodes)
	percent := func(part, whole float64) float64 { return 100 * part / each / whole }
	return results.Line{Name: "Asked/" + cfg.String(), Count: nodes, Values: []value{
		{Number: percent(float64(part.objects), float64(whole.objects)), Unit: "objects-percent"},
		{Number: percent(float64(named), float64(whole.objects)), Unit: "named-percent"},
		{Number: percent(float64(part.events), float64(whole.events)), Unit: "events-percent"},
		{Number: percent(float64(part.bytes), float64(whole.bytes)), Unit: "bytes-percent"},
		{Number: float64(part.watches) / each, Unit: "watches"},
		{Number: percent(float64(everything), 1), Unit: "watch-all-percent"},
		{Number: float64(policies), Unit: "policies"},
	}}
}
