package property

import (
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-network-policies/tests/oracle"
)

// tree is a cluster as JSON: maps, slices and scalars.
type tree = map[string]any

func toTree(c oracle.Cluster) tree {
	text, err := json.Marshal(c)
	if err != nil {
		panic(err)
	}
	var t tree
	if err := json.Unmarshal(text, &t); err != nil {
		panic(err)
	}
	return t
}

func toCluster(t tree) (oracle.Cluster, error) {
	var c oracle.Cluster
	text, err := json.Marshal(t)
	if err != nil {
		return c, err
	}
	return c, json.Unmarshal(text, &c)
}

// size is the length of the cluster as JSON. Some fields come back when they are
// removed; what does not get shorter is not smaller.
func size(c oracle.Cluster) int {
	text, err := json.Marshal(c)
	if err != nil {
		panic(err)
	}
	return len(text)
}

// clone copies a cluster deeply.
func clone(c oracle.Cluster) oracle.Cluster {
	copied := c
	copied.Namespaces = cloneObjects(c.Namespaces)
	copied.Pods = cloneObjects(c.Pods)
	copied.Nodes = cloneObjects(c.Nodes)
	copied.NetworkPolicies = cloneObjects(c.NetworkPolicies)
	return copied
}

func cloneObjects[T interface{ DeepCopy() T }](objects []T) []T {
	copied := slices.Clone(objects)
	for i, o := range copied {
		copied[i] = o.DeepCopy()
	}
	return copied
}

// shrink removes from a cluster, as long as it fails, whatever it can: objects,
// rules, peers, single fields. It returns a cluster that fails still.
func shrink(c oracle.Cluster, fails func(oracle.Cluster) bool) oracle.Cluster {
	for again := true; again; {
		again = false
		t := toTree(c)
		for restore := range removals(t) {
			smaller, err := toCluster(t)
			if err == nil && size(smaller) < size(c) && fails(smaller) {
				c, again = smaller, true
			} else {
				restore()
			}
		}
	}
	return c
}

// removals removes one part of a tree after the other, large ones before the
// small ones in them. A part that is not restored stays removed.
func removals(t tree) iter.Seq[func()] {
	return func(yield func(restore func()) bool) {
		removeFrom(t, func(any) {}, yield)
	}
}

// removeFrom walks a part of a tree. replace puts another value in its place.
func removeFrom(part any, replace func(any), yield func(func()) bool) bool {
	switch part := part.(type) {
	case tree:
		return removeKeys(part, yield)
	case []any:
		return removeElements(part, replace, yield)
	}
	return true
}

func removeKeys(m tree, yield func(func()) bool) bool {
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if key == "metadata" || key == "name" || key == "namespace" || key == "EndPort" || key == "SCTP" {
			continue // without a name nobody could read the rest
		}
		value := m[key]
		delete(m, key)
		removed := true
		if !yield(func() { m[key] = value; removed = false }) {
			return false
		}
		if removed {
			continue
		}
		if !removeFrom(value, func(v any) { m[key] = v }, yield) {
			return false
		}
	}
	if meta, ok := m["metadata"].(tree); ok {
		return removeKeys(meta, yield)
	}
	return true
}

func removeElements(list []any, replace func(any), yield func(func()) bool) bool {
	for i := 0; i < len(list); {
		full := list
		list = slices.Delete(slices.Clone(full), i, i+1)
		replace(list)
		if !yield(func() { list = full; replace(full) }) {
			return false
		}
		if len(list) < len(full) {
			continue
		}
		if !removeFrom(list[i], func(v any) { list[i] = v }, yield) {
			return false
		}
		i++
	}
	return true
}

// describe writes a cluster as the manifests that would make it.
func describe(c oracle.Cluster) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# feature gates: EndPort=%v, SCTP=%v\n", c.EndPort, c.SCTP)
	t := toTree(c)
	for _, kind := range []struct{ field, kind, version string }{
		{"Namespaces", "Namespace", "v1"},
		{"Nodes", "Node", "v1"},
		{"Pods", "Pod", "v1"},
		{"NetworkPolicies", "NetworkPolicy", "networking.k8s.io/v1"},
	} {
		objects, _ := t[kind.field].([]any)
		for _, o := range objects {
			object := o.(tree)
			object["kind"], object["apiVersion"] = kind.kind, kind.version
			text, err := yaml.Marshal(withoutNoise(object))
			if err != nil {
				panic(err)
			}
			fmt.Fprintf(&b, "---\n%s", text)
		}
	}
	return b.String()
}

// withoutNoise drops what the API types always print.
func withoutNoise(object tree) tree {
	if status, ok := object["status"].(tree); ok {
		delete(status, "nodeInfo")
		delete(status, "daemonEndpoints")
	}
	for _, key := range []string{"status", "spec"} {
		part, ok := object[key].(tree)
		maps.DeleteFunc(part, func(_ string, v any) bool { return v == nil })
		if ok && len(part) == 0 {
			delete(object, key)
		}
	}
	return object
}

// TestShrink: what is left is all that the failure needs.
func TestShrink(t *testing.T) {
	fails := func(c oracle.Cluster) bool {
		for _, pod := range c.Pods {
			if pod.Labels["a"] == "x" && len(c.NetworkPolicies) > 0 {
				return true
			}
		}
		return false
	}
	g := newGen(1)
	c := g.cluster()
	for !fails(c) {
		c = g.cluster()
	}
	c = shrink(c, fails)
	if len(c.Pods) != 1 || len(c.NetworkPolicies) != 1 || len(c.Namespaces)+len(c.Nodes) != 0 {
		t.Fatalf("objects are left that the failure does not need:\n%s", describe(c))
	}
	if pod := c.Pods[0]; len(pod.Labels) != 1 || len(pod.Status.PodIPs) != 0 || pod.Spec.NodeName != "" {
		t.Errorf("fields are left that the failure does not need:\n%s", describe(c))
	}
}
