package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/exposure"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
)

// exposed returns what Ingresses, routes, Services and host ports expose of members, with workloads in the
// place of their pods. Without members, it is everything, or everything of the namespace of -n.
func (o *options) exposed(c *reachability.Cluster, in clusterstate.Input, services *services, objects []*unstructured.Unstructured, members map[string]bool) []exposure.Exposure {
	workload := map[string]string{}
	for _, p := range in.Pods {
		workload[p.Namespace+"/"+p.Name] = workloadOf(p)
	}
	grouped := func(names []string) []string {
		var all []string
		for _, name := range names {
			all = append(all, cmp.Or(workload[name], name))
		}
		slices.Sort(all)
		return slices.Compact(all)
	}
	found := exposure.Find(&exposure.Input{Cluster: c, Pods: in.Pods, Nodes: in.Nodes, Services: services.list, Ranges: services.ranges, Behind: services.backends, Objects: objects})
	found = slices.DeleteFunc(found, func(x exposure.Exposure) bool {
		if members != nil {
			return !slices.ContainsFunc(x.Pods, func(name string) bool { return members[name] })
		}
		return o.namespace != "" && !strings.HasPrefix(cmp.Or(x.Service, x.Namespace+"/"), o.namespace+"/")
	})
	for i := range found {
		found[i].Pods, found[i].Controller = grouped(found[i].Pods), grouped(found[i].Controller)
	}
	return found
}

// membersOf returns the names of the members of sides.
func membersOf(sides ...reachability.Side) map[string]bool {
	members := map[string]bool{}
	for i := range sides {
		for _, m := range sides[i].Members {
			members[m.Name] = true
		}
	}
	return members
}

// letInTexts complete "its controller's pods, NAMES, ...".
var letInTexts = map[exposure.LetIn]string{
	exposure.All:  "are let in",
	exposure.Some: "are let in only between some of the pods",
	exposure.None: "are not let in",
}

// outsideTexts are what is said of addresses outside.
var outsideTexts = map[exposure.LetIn]string{
	exposure.All:  "all addresses outside are let in",
	exposure.Some: "only some addresses outside, or only to some of the pods, are let in",
	exposure.None: "no address outside is let in",
}

// exposureText says what is exposed and whether that works.
func exposureText(x *exposure.Exposure) string {
	if len(x.Pods) == 0 {
		behind := "service " + x.Service
		if x.HostPort() {
			behind = "it"
		}
		return fmt.Sprintf("by %s: what is behind %s is not known: %s", x.By(), behind, x.Why)
	}
	text := fmt.Sprintf("%s at %s, by %s", shorten(x.Pods), x.Port, x.By())
	switch {
	case x.Outside():
		return text + "; " + outsideTexts[x.LetIn] + throughNodes(x) + throughBalancer(x)
	case x.LetIn == exposure.Unknown:
		return text + "; whether its controller's pods are let in is not known: " + x.Why
	}
	return fmt.Sprintf("%s; its controller's pods, %s, %s", text, shorten(x.Controller), letInTexts[x.LetIn])
}

// throughNodes says what differs for clients that enter through another node than the pod's: the
// pod sees the address of that node.
func throughNodes(x *exposure.Exposure) string {
	switch {
	case x.Nodes == "" || x.Nodes == x.LetIn || x.Nodes == exposure.Unknown:
		return ""
	case x.Nodes == exposure.All:
		return ", and all that enter through another node, with its address"
	}
	return ", but not all that enter through another node, with its address"
}

// throughBalancer says from where a load balancer takes connections. That is no policy, and other
// ways to the pods, such as the NodePort, are open to all that policies let in.
func throughBalancer(x *exposure.Exposure) string {
	if len(x.SourceRanges) == 0 {
		return ""
	}
	return fmt.Sprintf("; only the load balancer is limited to %s, by loadBalancerSourceRanges and not by policies", shorten(x.SourceRanges))
}

// exposureLines returns the section of an answer about what is exposed, nothing if there is none.
func exposureLines(found []exposure.Exposure) []string {
	if len(found) == 0 {
		return nil
	}
	lines := []string{"Exposed by Ingresses, routes, Services and host ports:"}
	for i := range found {
		lines = append(lines, "- "+exposureText(&found[i]))
	}
	return lines
}

// exposureNotes returns what explain says of the pods of a server.
func exposureNotes(found []exposure.Exposure) []string {
	var notes []string
	for i := range found {
		notes = append(notes, "exposed: "+exposureText(&found[i]))
	}
	return notes
}

// exposureChange is an exposure that is there only before or after a change, or with another
// answer.
type exposureChange struct {
	Change string `json:"change"`
	exposure.Exposure
}

// exposureChanges compares exposures.
func exposureChanges(before, after []exposure.Exposure) []exposureChange {
	key := func(x *exposure.Exposure) string { return x.By() + x.Service + x.Port }
	index := func(all []exposure.Exposure) (texts, keys map[string]bool) {
		texts, keys = map[string]bool{}, map[string]bool{}
		for i := range all {
			texts[exposureText(&all[i])], keys[key(&all[i])] = true, true
		}
		return texts, keys
	}
	var changes []exposureChange
	add := func(all, others []exposure.Exposure, alone, both string) {
		texts, keys := index(others)
		for i := range all {
			change := alone
			if keys[key(&all[i])] {
				change = both
			}
			if len(all[i].Pods) > 0 && !texts[exposureText(&all[i])] {
				changes = append(changes, exposureChange{change, all[i]})
			}
		}
	}
	add(before, after, "no longer exposed", "before")
	add(after, before, "newly exposed", "after")
	return changes
}

// exposureChangeLines returns the lines of changes, each with its prefix.
func exposureChangeLines(changes []exposureChange, prefix string) string {
	var out strings.Builder
	for i := range changes {
		fmt.Fprintf(&out, "%s%s: %s\n", prefix, changes[i].Change, exposureText(&changes[i].Exposure))
	}
	return out.String()
}
