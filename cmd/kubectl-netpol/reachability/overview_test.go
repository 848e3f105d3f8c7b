package reachability

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
)

func byNamespace(p *corev1.Pod) Side { return Side{Namespace: p.Namespace} }

func byLabel(p *corev1.Pod) Side { return Side{Namespace: p.Namespace, Name: p.Labels["app"]} }

// Each cell of an overview agrees with the evaluation of its members one by one.
func TestOverviewIsWhatItsMembersSay(t *testing.T) {
	partial := 0
	forClusters(t, 200, func(t *testing.T, g gen, in clusterstate.Input) {
		c := New(in)
		pods := c.Pods(FirstCommon)
		for _, sideOf := range []func(*corev1.Pod) Side{byNamespace, byLabel} {
			sides := c.Sides(pods, sideOf)
			for _, s := range sidesOf(t, c, outside) {
				sides = append(sides, Side{Name: s.Name, Members: []Endpoint{s}})
			}
			all, one := c.Overview(sides, sides, Port{}, FirstCommon), c.Overview(sides, sides, g.connection(), FirstCommon)
			for row := range sides {
				for column := range sides {
					checkCell(t, c, all, one, row, column)
					if !all.Some(row, column).Empty() {
						partial++
					}
				}
			}
		}
	})
	if partial < 100 {
		t.Errorf("only %d partial cells", partial)
	}
}

func checkCell(t *testing.T, c *Cluster, all, one *Overview, row, column int) {
	t.Helper()
	every, some, port := AllPorts(), PortSet{}, map[bool]int{}
	from, to := all.From[row].Members, all.To[column].Members
	r := c.Reach(append(from[:len(from):len(from)], to...), FirstCommon)
	pairs := 0
	for i := range from {
		for j := range to {
			if from[i].Name == to[j].Name && len(from)*len(to) > 1 {
				continue
			}
			set := r.Between(i, len(from)+j)
			every, some = every.Intersect(set), some.Union(set)
			port[c.Evaluate(&from[i], &to[j], one.Port, FirstCommon).Allowed]++
			pairs++
		}
	}

	if got, want := all.Every(row, column).String(), every.String(); got != want {
		t.Errorf("%v -> %v: every pair: got %v, want %v", &all.From[row], &all.To[column], got, want)
	}
	if got, want := all.Some(row, column).String(), some.Without(every).String(); got != want {
		t.Errorf("%v -> %v: some pair: got %v, want %v", &all.From[row], &all.To[column], got, want)
	}
	if one.Every(row, column).All() != (port[false] == 0) || one.Some(row, column).All() != (port[false] > 0 && port[true] > 0) {
		t.Errorf("%v -> %v %v: got %v and %v of %v", &all.From[row], &all.To[column], one.Port, one.Every(row, column), one.Some(row, column), port)
	}
	if got, want := all.Only(row, column, one.Port).Partial(0, 0), one.Partial(row, column); !reflect.DeepEqual(got, want) {
		t.Errorf("%v -> %v %v alone: got %+v, want %+v", &all.From[row], &all.To[column], one.Port, got, want)
	}
	if p := one.Partial(row, column); p.Pairs != pairs || port[false]*port[true] > 0 && p.Reaching != port[true] {
		t.Errorf("%v -> %v %v: got %+v of %v", &all.From[row], &all.To[column], one.Port, p, port)
	}
}

// A workload with one pod may get more, so its cell is about two pods.
func TestAWorkloadsPodsAmongThemselves(t *testing.T) {
	in := busy(1, 1, 51) // app-0 admits app-1 and its team, but not itself
	in.Policies = in.Policies[:50]
	c := New(in)
	sideOf := func(replicated bool) string {
		sides := c.Sides(c.Pods(FirstCommon), func(p *corev1.Pod) Side {
			return Side{Namespace: p.Namespace, Name: "app", Replicated: replicated}
		})
		return c.Overview(sides, sides, Port{}, FirstCommon).Every(0, 0).String()
	}
	if one, more := sideOf(false), sideOf(true); one != "all" || more != "" {
		t.Errorf("got %q for a pod and itself, %q for two", one, more)
	}
}

func TestPortsOfASide(t *testing.T) {
	c := New(busy(2, 1, 0))
	http, err := ParsePort("http", "TCP")
	if err != nil {
		t.Fatal(err)
	}
	sides := c.Sides(c.Pods(FirstCommon), byLabel)
	sides[1].Ports = []Port{http, {Proto: http.Proto, Number: 9}}
	if got := c.Overview(sides, sides, Port{}, FirstCommon); got.Every(0, 1).String() != "" || got.Every(1, 1).String() != "9,8080/TCP" {
		t.Errorf("got %v, %v", got.Every(0, 1), got.Every(1, 1))
	}
}
