package property

import (
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
	"sigs.k8s.io/kube-network-policies/tests/model/oracle"
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

// size is the length of the cluster as JSON. Some fields get a default when they are removed, so
// that the result is not smaller.
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
	copied.CIDRGroups = cloneObjects(c.CIDRGroups)
	copied.NetworkPolicies = cloneObjects(c.NetworkPolicies)
	copied.AdminNetworkPolicies = cloneObjects(c.AdminNetworkPolicies)
	copied.BaselineAdminNetworkPolicies = cloneObjects(c.BaselineAdminNetworkPolicies)
	copied.ClusterNetworkPolicies = cloneObjects(c.ClusterNetworkPolicies)
	return copied
}

func cloneObjects[T interface{ DeepCopy() T }](objects []T) []T {
	copied := slices.Clone(objects)
	for i, o := range copied {
		copied[i] = o.DeepCopy()
	}
	return copied
}

// shrink removes objects, rules, peers and single fields from a cluster as long as it still fails,
// and returns the smallest failing cluster found.
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

// removals removes one part of a tree after another, large parts before the small ones in them. A
// part stays removed unless it is restored.
func removals(t tree) iter.Seq[func()] {
	return func(yield func(restore func()) bool) {
		removeFrom(t, func(any) {}, yield)
	}
}

// removeFrom walks a part of a tree. replace replaces the part.
func removeFrom(part any, replace func(any), yield func(func()) bool) bool {
	switch part := part.(type) {
	case tree:
		return removeKeys(part, yield)
	case []any:
		return removeElements(part, replace, yield)
	}
	return true
}

// kept are keys that are never removed: names are needed to read the rest, and feature gates are
// not part of the cluster.
var kept = []string{"metadata", "name", "namespace", "EndPort", "SCTP", "NodePeers", "DomainNames", "IngressByAddress", "ServiceAccounts", "GroupPeers"}

func removeKeys(m tree, yield func(func()) bool) bool {
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if slices.Contains(kept, key) {
			continue
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
	fmt.Fprintf(&b, "# feature gates: EndPort=%v, SCTP=%v, Nodes=%v, DomainNames=%v, IngressByAddress=%v, ServiceAccounts=%v, CIDRGroups=%v\n",
		c.EndPort, c.SCTP, c.NodePeers, c.DomainNames, c.IngressByAddress, c.ServiceAccounts, c.GroupPeers)
	t := toTree(c)
	for _, kind := range []struct{ field, kind, version string }{
		{"Namespaces", "Namespace", "v1"},
		{"Nodes", "Node", "v1"},
		{"Pods", "Pod", "v1"},
		{"CIDRGroups", "CIDRGroup", v1alpha1.GroupVersion.String()},
		{"NetworkPolicies", "NetworkPolicy", "networking.k8s.io/v1"},
		{"AdminNetworkPolicies", "AdminNetworkPolicy", v1alpha1.GroupVersion.String()},
		{"BaselineAdminNetworkPolicies", "BaselineAdminNetworkPolicy", v1alpha1.GroupVersion.String()},
		{"ClusterNetworkPolicies", "ClusterNetworkPolicy", v1beta1.GroupVersion.String()},
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

// withoutNoise drops the fields that API types always print.
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

// TestShrink: only the parts that the failure needs are left.
func TestShrink(t *testing.T) {
	fails := func(c oracle.Cluster) bool {
		pod := slices.ContainsFunc(c.Pods, func(p *corev1.Pod) bool { return p.Labels["a"] == "x" })
		policy := slices.ContainsFunc(c.ClusterNetworkPolicies, func(p *proposed.ClusterNetworkPolicy) bool { return len(p.Spec.Egress) > 1 })
		return pod && policy && len(c.NetworkPolicies) > 0
	}
	g := newGen(1)
	c := g.cluster()
	for !fails(c) {
		c = g.cluster()
	}
	c = shrink(c, fails)
	if len(objectsOf(c)) != 3 {
		t.Fatalf("objects are left that the failure does not need:\n%s", describe(c))
	}
	if pod := c.Pods[0]; len(pod.Labels) != 1 || len(pod.Status.PodIPs) != 0 || pod.Spec.NodeName != "" {
		t.Errorf("fields are left that the failure does not need:\n%s", describe(c))
	}
	spec := c.ClusterNetworkPolicies[0].Spec
	if len(spec.Egress) != 2 || len(spec.Egress[0].To)+len(spec.Egress[1].Protocols)+len(spec.Ingress) != 0 || spec.Subject.Pods != nil {
		t.Errorf("parts of a policy are left that the failure does not need:\n%s", describe(c))
	}
}
