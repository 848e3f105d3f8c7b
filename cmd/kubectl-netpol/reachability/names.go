package reachability

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// compared is what a Difference shows as one: a pod, an address, or the pods of one name that
// policies treat alike in both clusters.
type compared struct {
	shown   Endpoint
	members []int // indexes of a comparison's endpoints
	twin    bool  // whether it stands for several pods
	changed bool  // whether some member or its rules are not the same in both clusters
}

// groupKey is equal for pods that are one group. Pods of a node's network are groups of their
// own: what they reach depends on the node.
type groupKey struct {
	name          string
	before, after int // their classes in Reach
	own           int // index of an endpoint that is a group of its own, plus one
}

// group sorts the endpoints into groups, in the order of their first members.
func (c *comparison) group(names Names, same *sameness) {
	before, after := same.before, same.after
	index := map[groupKey]int{}
	ofName := map[string]map[string]bool{} // the first pods of the groups of a name
	for i := range c.before {
		e := c.after[i]
		if e.Name == "" {
			e = c.before[i]
		}
		key := groupKey{name: names.of(e.Name, before, after), own: i + 1}
		if names.Pod != nil && e.Kind == Pod {
			key = groupKey{key.name, c.reachBefore.places[i].class, c.reachAfter.places[i].class, 0}
		}
		at := number(index, key)
		if at == len(c.groups) {
			c.groups = append(c.groups, compared{shown: e, twin: c.twin[i]})
			if ofName[key.name] == nil {
				ofName[key.name] = map[string]bool{}
			}
			ofName[key.name][e.Name] = true
		}
		g := &c.groups[at]
		g.members = append(g.members, i)
		g.twin = g.twin || len(g.members) > 1
		g.changed = g.changed || !same.has(&c.before[i], &c.after[i])
	}
	for i := range c.groups {
		g := &c.groups[i]
		pod := g.shown.Name
		g.shown.Name = names.of(pod, before, after)
		if len(ofName[g.shown.Name]) > 1 && g.shown.Name != pod {
			g.shown.Name += c.which(g)
		}
	}
}

// which returns the pods of a group, to tell it from others of its name.
func (c *comparison) which(g *compared) string {
	_, name, _ := strings.Cut(c.nameOf(g.members[0]), "/")
	if more := len(g.members) - 1; more > 0 {
		return fmt.Sprintf(" (%s and %d more)", name, more)
	}
	return " (" + name + ")"
}

func (c *comparison) nameOf(i int) string { return cmp.Or(c.after[i].Name, c.before[i].Name) }

// pair returns members of two groups, on different nodes if there are such members: what a pod
// and its own node send to each other is allowed in any case.
func (c *comparison) pair(from, to *compared) (i, j int) {
	node := func(i int) string { return cmp.Or(c.after[i].Node, c.before[i].Node) }
	i, j = from.members[0], to.members[0]
	for _, k := range from.members {
		if to.shown.onHost() && node(k) != node(j) {
			return k, j
		}
	}
	for _, k := range to.members {
		if from.shown.onHost() && node(k) != node(i) {
			return i, k
		}
	}
	return i, j
}

// by returns the policies that change what passes between two groups.
func (c *comparison) by(from, to int, port Port) []string {
	i, j := c.pair(&c.groups[from], &c.groups[to])
	if slices.ContainsFunc([]string{c.before[i].Name, c.before[j].Name, c.after[i].Name, c.after[j].Name}, func(name string) bool { return name == "" }) {
		return nil
	}
	var differ, all []string
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		was, before := c.same.before.inDirection(d, &c.before[i], &c.before[j], port, c.family, true)
		is, after := c.same.after.inDirection(d, &c.after[i], &c.after[j], port, c.family, true)
		if was == is {
			continue
		}
		for _, ref := range slices.Concat(before, after) {
			name := *ref
			name.Generation = 0
			all = append(all, name.String())
			if !c.same.policies[name] {
				differ = append(differ, name.String())
			}
		}
	}
	if differ == nil {
		differ = all
	}
	return sortedUnion(differ, nil)
}

// shown returns the groups as endpoints.
func (c *comparison) shown() []Endpoint {
	endpoints := make([]Endpoint, len(c.groups))
	for i := range c.groups {
		endpoints[i] = c.groups[i].shown
	}
	return endpoints
}

// of returns the name of a pod or an address.
func (n *Names) of(name string, before, after *Cluster) string {
	if shown := n.Addresses[name]; shown != "" {
		return shown
	}
	pod := after.pods[name]
	if pod == nil {
		pod = before.pods[name]
	}
	if n.Pod == nil || pod == nil || IsNewName(name) {
		return name
	}
	return n.Pod(pod)
}

// ofPods returns the sorted names of pods, each once.
func (n *Names) ofPods(pods []string, before, after *Cluster) []string {
	if n.Pod == nil {
		return pods
	}
	var names []string
	for _, pod := range pods {
		names = append(names, n.of(pod, before, after))
	}
	return sortedUnion(names, nil)
}
