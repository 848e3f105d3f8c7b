package model

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/clusterwatch"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
)

var small = Config{Nodes: 100, Pods: 3000, Namespaces: 100}

func TestOneConfigDrawsOneCluster(t *testing.T) {
	a, b := Draw(small), Draw(small)
	if !slices.Equal(slices.Collect(a.Pods), slices.Collect(b.Pods)) {
		t.Fatal("pods differ")
	}
	for i := range 5000 {
		if p, q := a.Next(), b.Next(); p != q {
			t.Fatalf("change %d is %+v and %+v", i, p, q)
		}
	}
}

func TestSizes(t *testing.T) {
	for _, tt := range []struct {
		zipf             bool
		first, hundredth int
	}{{false, 75, 75}, {true, 18336, 183}} {
		t.Run(fmt.Sprintf("zipf=%v", tt.zipf), func(t *testing.T) {
			cfg := Large
			cfg.Zipf = tt.zipf
			sizes, sum := cfg.sizes(), 0
			for _, n := range sizes {
				sum += n
			}

			if sum != cfg.Pods || len(sizes) != cfg.Namespaces || sizes[0] != tt.first || sizes[99] != tt.hundredth {
				t.Errorf("%d pods in %d namespaces with %d in the first and %d in the hundredth", sum, len(sizes), sizes[0], sizes[99])
			}
		})
	}
}

// TestLives follows all pods through changes.
func TestLives(t *testing.T) {
	c := Draw(small)
	stages, addrs := map[string]Stage{}, map[netip.Addr]string{}
	for p := range c.Pods {
		stages[p.Name()], addrs[p.Addr()] = p.Stage, p.Name()
		if !Range(p.Node).Contains(p.Addr()) {
			t.Errorf("%s is not in the range of node %d", p.Addr(), p.Node)
		}
	}
	if len(stages) != small.Pods || len(addrs) != small.Pods {
		t.Fatalf("%d names and %d addresses of %d pods", len(stages), len(addrs), small.Pods)
	}
	events := map[Stage]int{}
	for range 50_000 {
		p := c.Next()
		name := p.Name()
		events[p.Stage]++
		if before, known := stages[name]; known != (p.Stage > Created) || known && p.Stage != before+1 {
			t.Fatalf("%s is at stage %d after %d", name, p.Stage, before)
		}
		stages[name] = p.Stage
		switch p.Stage {
		case Running:
			if other := addrs[p.Addr()]; other != "" {
				t.Fatalf("%s has the address of the live pod %s", name, other)
			}
			addrs[p.Addr()] = name
		case Deleted:
			if addrs[p.Addr()] != name {
				t.Fatalf("%s had no address", name)
			}
			delete(addrs, p.Addr())
		}
	}
	for stage := Created; stage <= Deleted; stage++ {
		if n := events[stage]; n < 9_500 || n > 10_500 {
			t.Errorf("%d events of stage %d, want a fifth", n, stage)
		}
	}

	if n := len(addrs); n < small.Pods || n > small.Pods+maxAdded+atOnce*jobPods {
		t.Errorf("%d pods after changes, want about %d", n, small.Pods)
	}
}

func TestPolicies(t *testing.T) {
	for _, tt := range []struct {
		cfg  Config
		want map[string]int // number of policies by name, for names that some namespaces have
	}{
		{small, map[string]int{"own": 97, "client": 10}},
		{Config{Nodes: 100, Pods: 3000, Namespaces: 100, Everyone: 2}, map[string]int{"own": 97, "client": 10, "everyone": 2}},
		{Config{Nodes: 100, Pods: 2290, Namespaces: 5, Zipf: true, ByLabel: true}, map[string]int{"own": 1, "own-app-0": 1, "own-app-147": 1, "client": 1}},
	} {
		t.Run(tt.cfg.String(), func(t *testing.T) {
			c := Draw(tt.cfg)
			names := map[string]int{}
			for i := range tt.cfg.Namespaces {
				for _, p := range c.Policies(i) {
					names[p.Name]++
				}
			}
			for name, want := range tt.want {
				if names[name] != want {
					t.Errorf("%d policies %s, want %d", names[name], name, want)
				}
			}
			for _, always := range []string{"deny", "controller", "monitoring", "dns"} {
				if names[always] != tt.cfg.Namespaces-ownServices {
					t.Errorf("%d policies %s of %d namespaces", names[always], always, tt.cfg.Namespaces)
				}
			}

			if _, own := names["own-app-148"]; own {
				t.Error("a policy is for an application that does not exist")
			}
		})
	}
}

// TestWatchesHaveWhatTheySelect compares counts with a count pod by pod.
func TestWatchesHaveWhatTheySelect(t *testing.T) {
	c := Draw(small)
	for _, tt := range []struct {
		watch clusterwatch.PodQuery
		want  int // -1 for any number except 0
	}{
		{clusterwatch.PodQuery{}, small.Pods},
		{clusterwatch.PodQuery{Node: NodeName(7)}, -1},
		{clusterwatch.PodQuery{PodSet: clusterstate.PodSet{Labels: "k8s-app=kube-dns"}}, dnsPods},
		{clusterwatch.PodQuery{PodSet: clusterstate.PodSet{Namespace: c.NamespaceName(1), Labels: "app=app-0"}}, replicas},
		{clusterwatch.PodQuery{PodSet: clusterstate.PodSet{Namespace: c.NamespaceName(c.monitoring())}}, monitoringPods},
		{clusterwatch.PodQuery{PodSet: clusterstate.PodSet{Namespace: c.NamespaceName(1), Labels: "app=none"}}, 0},
	} {
		t.Run(tt.watch.String(), func(t *testing.T) {
			w, n := newWatch(tt.watch), 0
			for p := range c.Pods {
				if c.Has(w, p) {
					n++
				}
			}
			if got := c.Count(w); got != n || tt.want >= 0 && n != tt.want || tt.want < 0 && n == 0 {
				t.Errorf("%d pods, %d one by one, want %d", got, n, tt.want)
			}
		})
	}
}

// TestNodesNeedWhatTheirPoliciesName: a node has two pods of one namespace.
func TestNodesNeedWhatTheirPoliciesName(t *testing.T) {
	c := Draw(small)
	var pods []Pod
	for p := range c.Pods {
		if p.Namespace == 3 && len(pods) < 2 {
			p.Node = 5
			pods = append(pods, p)
		}
	}
	needed := map[string]bool{}
	for _, w := range c.Needed(5, pods, clusterwatch.MaxNeededWatches) {
		needed[w.String()] = true
	}

	want := []string{
		`pods of labels "k8s-app=kube-dns"`,
		`pods of namespace "ns-0003"`,
		`pods of namespace "ns-0098", labels "app=ingress-controller"`,
		`pods of namespace "ns-0099"`,
		`pods of node "node-5"`,
	}
	if got := slices.Sorted(maps.Keys(needed)); !slices.Equal(got, want) {
		t.Errorf("watches %q, want %q", got, want)
	}
}

func TestObjects(t *testing.T) {
	c := Draw(small)
	for range 1000 {
		p := c.Next()
		o := c.Object(p)
		if running := p.Stage > Scheduled; running != (o.Status.PodIP != "") || (p.Stage == Created) != (o.Spec.NodeName == "") {
			t.Fatalf("stage %d: on %q with address %q", p.Stage, o.Spec.NodeName, o.Status.PodIP)
		}
		if (p.Stage == Terminating) != (o.DeletionTimestamp != nil) && p.Stage != Deleted {
			t.Fatalf("stage %d: deleted at %v", p.Stage, o.DeletionTimestamp)
		}
		if size := o.Size(); size < 3000 || size > 4000 {
			t.Fatalf("a pod has %d bytes", size)
		}
	}
}

// TestPoliciesNamePods: a node has a pod of one namespace. The namespace's policies name
// its own 30 pods, the ingress controllers, monitoring and DNS, and the node's watches
// select these pods too.
func TestPoliciesNamePods(t *testing.T) {
	c := Draw(small)
	var pods []Pod
	own := 0
	for p := range c.Pods {
		if p.Namespace != 3 {
			continue
		}
		own++
		if pods == nil {
			p.Node = -2 // a node without other pods
			pods = append(pods, p)
		}
	}

	want := own + ingressPods + monitoringPods + dnsPods
	if got := c.Named(-2, pods); got != want {
		t.Errorf("%d pods are named, want %d", got, want)
	}
}
