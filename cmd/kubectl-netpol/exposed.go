package main

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"sigs.k8s.io/kube-network-policies/pkg/tool/exposure"
	"sigs.k8s.io/kube-network-policies/pkg/tool/reachability"
)

// exposed returns what Ingresses and routes expose of the pods that shown names, with workloads in
// the place of their pods. Without shown, it is everything.
func (o *options) exposed(c *reachability.Cluster, pods []*corev1.Pod, services []*corev1.Service, objects []*unstructured.Unstructured, shown map[string]bool) []exposure.Exposure {
	if len(objects) == 0 {
		return nil
	}
	workload := map[string]string{}
	for _, p := range pods {
		workload[p.Namespace+"/"+p.Name] = workloadOf(p)
	}
	grouped := func(names []string) []string {
		var all []string
		for _, name := range names {
			all = append(all, workload[name])
		}
		slices.Sort(all)
		return slices.Compact(all)
	}
	found := exposure.Find(&exposure.Input{Cluster: c, Pods: pods, Services: services, Objects: objects})
	found = slices.DeleteFunc(found, func(x exposure.Exposure) bool {
		return shown != nil && !slices.ContainsFunc(x.Pods, func(name string) bool { return shown[name] })
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

// exposureText says what is exposed and whether that works.
func exposureText(x *exposure.Exposure) string {
	text := fmt.Sprintf("%s at %s, by %s", shorten(x.Pods), x.Port, x.By())
	if x.LetIn == exposure.Unknown {
		return text + "; whether its controller's pods are let in is not known: " + x.Why
	}
	return fmt.Sprintf("%s; its controller's pods, %s, %s", text, shorten(x.Controller), letInTexts[x.LetIn])
}

// exposureLines returns the section about Ingresses and routes of an answer, nothing if there is none.
func exposureLines(found []exposure.Exposure) []string {
	if len(found) == 0 {
		return nil
	}
	lines := []string{"Exposed by Ingresses and routes:"}
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
			if !texts[exposureText(&all[i])] {
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
