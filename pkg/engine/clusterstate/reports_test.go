package clusterstate

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// nodeWithRange is a Node whose pods have addresses of a range.
func nodeWithRange(name, podRange string) *corev1.Node {
	n := &corev1.Node{}
	n.Name, n.Spec.PodCIDRs = name, []string{podRange}
	return n
}

// far is a pod of namespace x and of the node n2 whose status has these addresses.
func far(name string, addrs ...string) *corev1.Pod {
	p := newcomer(name, addrs...)
	p.Spec.NodeName = "n2"
	return p
}

func ended(p *corev1.Pod) *corev1.Pod {
	p.Status.Phase = corev1.PodSucceeded
	return p
}

// twoNodes is the state of n1, beside which there is n2 with addresses 10.2.0.0/16.
func twoNodes() *Cluster {
	c := New(Config{NodeName: "n1"})
	c.Set(nodeWithRange("n1", "10.1.0.0/16"))
	c.Set(nodeWithRange("n2", "10.2.0.0/16"))
	c.Set(nodeWithRange("n3", "10.3.0.0/16"))
	return c
}

func TestReportsOfOtherNodes(t *testing.T) {
	const a = "10.2.0.7"
	for _, tc := range []struct {
		name     string
		node     string // that reports it
		pods     []*corev1.Pod
		reported []Sandbox // newest first
		want     string    // the pod at a
	}{
		{"a pod without a status", "n2", []*corev1.Pod{far("new")}, []Sandbox{sandbox("new", "uid-new", a)}, "x/new"},
		{"a pod that is not known", "n2", nil, []Sandbox{sandbox("new", "uid-new", a)}, ""},
		{"another pod of that name", "n2", []*corev1.Pod{far("new")}, []Sandbox{sandbox("new", "uid-old", a)}, ""},
		{"a pod of a third node", "n3", []*corev1.Pod{far("new")}, []Sandbox{sandbox("new", "uid-new", a)}, ""},
		{"a pod of this node", "n2", []*corev1.Pod{newcomer("new")}, []Sandbox{sandbox("new", "uid-new", a)}, ""},
		{"a pod of the node's network", "n2", []*corev1.Pod{func() *corev1.Pod { p := far("new"); p.Spec.HostNetwork = true; return p }()}, []Sandbox{sandbox("new", "uid-new", a)}, ""},
		{"a pod that has ended", "n2", []*corev1.Pod{ended(far("new"))}, []Sandbox{sandbox("new", "uid-new", a)}, ""},
		{"a pod with another address in its status", "n2", []*corev1.Pod{far("new", "10.2.0.8")}, []Sandbox{sandbox("new", "uid-new", a)}, ""},
		{"an address in another pod's status", "n2", []*corev1.Pod{far("new"), far("old", a)}, []Sandbox{sandbox("new", "uid-new", a)}, "x/old"},
		{"an address of a pod that has ended", "n2", []*corev1.Pod{far("new"), ended(far("old", a))}, []Sandbox{sandbox("new", "uid-new", a)}, "x/new"},
		{"the newest sandbox of a pod", "n2", []*corev1.Pod{far("new")}, []Sandbox{sandbox("new", "uid-new", a), sandbox("new", "uid-new", "10.2.0.8")}, "x/new"},
		{"the same in another order", "n2", []*corev1.Pod{far("new")}, []Sandbox{sandbox("new", "uid-new", "10.2.0.8"), sandbox("new", "uid-new", a)}, ""},
	} {
		for order, arrive := range map[string]func(*Cluster){
			"pods first": func(c *Cluster) {
				for _, p := range tc.pods {
					c.Set(compile.NewPod(p))
				}
				c.Snapshot()
				c.SetSandboxesOf(tc.node, tc.reported)
			},
			"answer first": func(c *Cluster) {
				c.SetSandboxesOf(tc.node, tc.reported)
				for _, p := range tc.pods {
					c.Set(compile.NewPod(p))
				}
			},
		} {
			t.Run(tc.name+"/"+order, func(t *testing.T) {
				c := twoNodes()
				arrive(c)
				if got := atAddress(c, a); got != tc.want {
					t.Errorf("%s is at %s, want %q", got, a, tc.want)
				}
				c.SetSandboxesOf(tc.node, nil)
				if strings.Contains(atAddress(c, a), "new") {
					t.Error("the address is still the pod's after the agent reported it no longer")
				}
			})
		}
	}
}

// atAddress returns the pod at an address, empty if none is known.
func atAddress(c *Cluster, addr string) string {
	if e := c.Snapshot().Endpoint(netip.MustParseAddr(addr)); e != nil {
		return e.String()
	}
	return ""
}

// TestStatusReplacesWhatWasReported: the pod's status replaces what was reported, whatever it says.
func TestStatusReplacesWhatWasReported(t *testing.T) {
	c := twoNodes()
	c.Set(compile.NewPod(far("new")))
	if n := len(c.newcomers); n != 1 {
		t.Errorf("%d newcomers before its agent reports the pod, want 1", n)
	}
	if !c.SetSandboxesOf("n2", []Sandbox{sandbox("new", "uid-new", "10.2.0.7")}) {
		t.Error("the address of a new pod changes nothing")
	}
	if n := len(c.newcomers); n != 0 {
		t.Errorf("%d newcomers after, want none", n)
	}
	if c.SetSandboxesOf("n2", []Sandbox{sandbox("new", "uid-new", "10.2.0.7")}) {
		t.Error("the same answer again counts as a change")
	}
	c.Set(compile.NewPod(far("new", "10.2.0.9")))
	if got := atAddress(c, "10.2.0.7") + atAddress(c, "10.2.0.9"); got != "x/new" {
		t.Errorf("at both addresses: %s, want x/new at that of its status only", got)
	}
}

// TestNoReportTakesAnAddress: whatever a node reports, addresses in statuses and those of other nodes
// keep their pods, and an address of the node can only become that of a pod that runs there.
func TestNoReportTakesAnAddress(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	node := func() string { return fmt.Sprintf("n%d", 1+random.IntN(3)) }
	addr := func() string { return fmt.Sprintf("10.%d.0.%d", 1+random.IntN(3), random.IntN(4)) }
	for range 2000 {
		c, nodes := twoNodes(), map[string]string{}
		for i := range 6 {
			name := fmt.Sprintf("p%d", i)
			p := newcomer(name)
			p.Spec.NodeName = node()
			if random.IntN(2) == 0 {
				p.Status.PodIPs = []corev1.PodIP{{IP: fmt.Sprintf("10.%s.0.%d", p.Spec.NodeName[1:], random.IntN(4))}}
			}
			nodes["x/"+name] = p.Spec.NodeName
			c.Set(compile.NewPod(p))
		}
		before := c.Snapshot()
		liar := node()
		var answer []Sandbox
		for range random.IntN(6) {
			name := fmt.Sprintf("p%d", random.IntN(7))
			answer = append(answer, Sandbox{Namespace: "x", Name: name, UID: types.UID("uid-" + name), Addrs: []netip.Addr{netip.MustParseAddr(addr())}})
		}
		c.SetSandboxesOf(liar, answer)
		after := c.Snapshot()
		for n := 1; n <= 3; n++ {
			for i := range 4 {
				a := netip.MustParseAddr(fmt.Sprintf("10.%d.0.%d", n, i))
				was, is := before.Endpoint(a), after.Endpoint(a)
				switch {
				case was == nil && is == nil:
				case was != nil && (is == nil || was.String() != is.String()):
					t.Fatalf("%s of %v became %v when %s reported %v", a, was, is, liar, answer)
				case was == nil && (nodes[is.String()] != liar || fmt.Sprintf("n%d", n) != liar || liar == "n1"):
					t.Fatalf("%s became %v, a pod of %s, when %s reported %v", a, is, nodes[is.String()], liar, answer)
				}
			}
		}
	}
}

// TestHasNode: a node is known by its object, or by any pod that is known to run there.
func TestHasNode(t *testing.T) {
	c := New(Config{NodeName: "n1"})
	want := func(when string, want bool) {
		t.Helper()
		if got := c.HasNode("n2"); got != want {
			t.Errorf("%s: %v", when, got)
		}
	}
	want("at first", false)
	c.Set(compile.NewPod(far("a")))
	c.Set(compile.NewPod(far("b", "10.2.0.9")))
	c.Set(compile.NewPod(far("b", "10.2.0.10")))
	want("with two pods", true)
	c.Delete(compile.KindPod, "x", "a")
	want("with one pod", true)
	c.Delete(compile.KindPod, "x", "b")
	want("without pods", false)
	c.Set(nodeWithRange("n2", "10.2.0.0/16"))
	want("with its object", true)
	c.Delete(compile.KindNode, "", "n2")
	want("without its object", false)
	pending := far("pending")
	pending.Spec.NodeName = ""
	c.Set(compile.NewPod(pending))
	if len(c.podsOn) != 1 || c.HasNode("") {
		t.Errorf("pods of %d nodes are counted, no name is one: %v", len(c.podsOn), c.HasNode(""))
	}
}

// TestNodesAt: without the ranges of other nodes, which agents without administrators' policies do not
// know, nodes with new pods may have an address.
func TestNodesAt(t *testing.T) {
	c := twoNodes()
	for addr, want := range map[string]string{"10.1.0.1": "[]", "10.2.0.1": "[n2]", "10.3.0.1": "[n3]", "192.0.2.1": "[]"} {
		if got := fmt.Sprint(c.NodesAt(netip.MustParseAddr(addr))); got != want {
			t.Errorf("%s: %s, want %s", addr, got, want)
		}
	}
	c = New(Config{NodeName: "n1"})
	c.Set(nodeWithRange("n1", "10.1.0.0/16"))
	c.Set(compile.NewPod(far("new")))
	c.Set(compile.NewPod(far("old", "10.2.0.9")))
	for addr, want := range map[string]string{"10.1.0.1": "[]", "10.2.0.1": "[n2]"} {
		if got := fmt.Sprint(c.NodesAt(netip.MustParseAddr(addr))); got != want {
			t.Errorf("without ranges, %s: %s, want %s", addr, got, want)
		}
	}
	c.SetSandboxesOf("n2", []Sandbox{sandbox("new", "uid-new", "10.2.0.1", "10.1.0.2")})
	if got := atAddress(c, "10.2.0.1") + " " + atAddress(c, "10.1.0.2"); got != "x/new " {
		t.Errorf("without ranges, a report gives %q, want only the address that is not of this node", got)
	}
}

// Outside of all ranges, too, an address in a status is not that of a pod which another node only reports.
func TestReportsCountLessThanStatuses(t *testing.T) {
	const addr = "203.0.113.1"
	for _, reportFirst := range []bool{false, true} {
		c := twoNodes()
		report := func() { c.SetSandboxesOf("n2", []Sandbox{sandbox("new", "uid-new", addr)}) }
		c.Set(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}})
		c.Set(compile.NewPod(far("new")))
		if reportFirst {
			report()
			c.Snapshot()
			if got := occupants(c, netip.MustParseAddr(addr)); got != "x/new" {
				t.Errorf("before a status has the address, it belongs to %q", got)
			}
		}
		c.Set(compile.NewPod(at("n3", "three", addr)))
		report()
		c.Snapshot()
		if got := occupants(c, netip.MustParseAddr(addr)); got != "x/three" {
			t.Errorf("report first %v: the address belongs to %q, want x/three", reportFirst, got)
		}
	}
}
