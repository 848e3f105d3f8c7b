package clusterstate

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// forwarders describes what the pods of this node may forward.
func forwarders(s *policy.Snapshot) string {
	var all []string
	for _, f := range s.Forwarders() {
		all = append(all, fmt.Sprintf("%v%v%v", f.Pod, f.Addrs, f.Sources))
	}
	return strings.Join(all, " ")
}

func forwardingNode(name, podCIDR string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDR: podCIDR}}
}

// TestForwardedSourcesFollowTheCluster: FW-1 and FW-3 after each change of a namespace, a
// pod or a node.
func TestForwardedSourcesFollowTheCluster(t *testing.T) {
	c := New(Config{NodeName: "n1", Features: compile.AllFeatures()})
	annotate := func(ns, value string) func() {
		return func() {
			o := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}
			if value != "" {
				o.Annotations = map[string]string{compile.ForwardedSourcesAnnotation: value}
			}
			if !c.Set(o) {
				t.Error("the change makes no snapshot")
			}
			if c.Set(o) {
				t.Error("the same object again is a change")
			}
		}
	}
	set := func(p *corev1.Pod) func() { return func() { c.Set(compile.NewPod(p)) } }
	const router = "x/router[10.0.0.1][10.8.0.0/24 10.9.0.0/16]"
	const refused = " Namespace x: metadata.annotations[kube-network-policies.x-k8s.io/forwarded-sources]: "
	for _, step := range []struct {
		name       string
		change     func()
		want       string
		found      string // empty for no finding
		unaffected bool   // nothing changed for this node's pods
	}{
		{"no annotation", annotate("x", ""), "", "", false},
		{"no pod", annotate("x", "10.8.0.0/24,10.9.0.0/16"), "", "", false},
		{"a pod", set(pod("x", "router", "n1", "10.0.0.1")), router, "", false},
		{"a pod of another namespace", set(pod("y", "web", "n1", "10.0.0.2")), router, "", false},
		{"a pod of another node", set(pod("x", "far", "n2", "10.0.1.1")), router, "", true},
		{"a policy", func() { c.Set(netpol("y", "p", `{podSelector: {matchLabels: {no: pod}}}`)) }, router, "", false},
		{"a pod has an address of a prefix", set(pod("z", "late", "n2", "10.9.7.7")), "x/router[10.0.0.1][10.8.0.0/24]", refused + `"10.9.0.0/16" contains the address of a pod; it is not allowed`, false},
		{"another one", set(pod("z", "later", "n2", "10.9.7.8")), "x/router[10.0.0.1][10.8.0.0/24]", refused + `"10.9.0.0/16" contains the address of a pod; it is not allowed`, true},
		{"one is gone", func() { c.Delete(compile.KindPod, "z", "late") }, "x/router[10.0.0.1][10.8.0.0/24]", refused + `"10.9.0.0/16" contains the address of a pod; it is not allowed`, true},
		{"both are gone", func() { c.Delete(compile.KindPod, "z", "later") }, router, "", false},
		{"a node has a range of a prefix", func() { c.Set(forwardingNode("n3", "10.8.0.128/25")) }, "x/router[10.0.0.1][10.9.0.0/16]", refused + `"10.8.0.0/24" overlaps the pod range of a node; it is not allowed`, false},
		{"the node is gone", func() { c.Delete(compile.KindNode, "", "n3") }, router, "", false},
		{"another value", annotate("x", "10.8.0.0/24,10.7.0.1/16"), "x/router[10.0.0.1][10.8.0.0/24]", refused + `"10.7.0.1/16" has host bits, 10.7.0.0/16 has none; it is not allowed`, false},
		{"a prefix around an older pod", annotate("x", "10.0.1.0/24"), "", refused + `"10.0.1.0/24" contains the address of a pod; it is not allowed`, false},
		{"a second namespace", annotate("y", "10.8.0.0/24"), "y/web[10.0.0.2][10.8.0.0/24]", refused + `"10.0.1.0/24" contains the address of a pod; it is not allowed`, false},
		{"the annotation is removed", annotate("x", ""), "y/web[10.0.0.2][10.8.0.0/24]", "", false},
		{"the namespace is gone", func() { c.Delete(compile.KindNamespace, "", "y") }, "", "", false},
	} {
		before := c.Snapshot()
		step.change()
		s := c.Snapshot()
		if got := forwarders(s); got != step.want {
			t.Errorf("%s: %q, want %q", step.name, got, step.want)
		}
		var found string
		for _, f := range s.Findings() {
			found += " " + f.String()
		}
		if found != step.found {
			t.Errorf("%s: found %q, want %q", step.name, found, step.found)
		}
		if step.unaffected && !s.SameLocal(before) {
			t.Errorf("%s: this node's pods are steered again", step.name)
		}
		if forwarders(s) != forwarders(before) && s.SameLocal(before) {
			t.Errorf("%s: this node's pods are not steered again", step.name)
		}
	}
}

// TestForwardedSourcesDoNotDependOnTheOrder: the order of objects is irrelevant.
func TestForwardedSourcesDoNotDependOnTheOrder(t *testing.T) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x", Annotations: map[string]string{compile.ForwardedSourcesAnnotation: "10.7.0.0/16,10.8.0.0/16,10.9.0.0/16"}}}
	objects := []func(c *Cluster){
		func(c *Cluster) { c.Set(ns) },
		func(c *Cluster) { c.Set(compile.NewPod(pod("x", "router", "n1", "10.0.0.1"))) },
		func(c *Cluster) { c.Set(compile.NewPod(pod("y", "web", "n2", "10.8.0.1"))) },
		func(c *Cluster) { c.Set(forwardingNode("n2", "10.7.1.0/24")) },
	}
	for first := range objects {
		for _, snapshots := range []bool{false, true} {
			c := New(Config{NodeName: "n1", Features: compile.AllFeatures()})
			for i := range objects {
				objects[(first+i)%len(objects)](c)
				if snapshots {
					c.Snapshot()
				}
			}
			if got, want := forwarders(c.Snapshot()), "x/router[10.0.0.1][10.9.0.0/16]"; got != want {
				t.Errorf("from object %d, snapshots %v: %q, want %q", first, snapshots, got, want)
			}
		}
	}
}
