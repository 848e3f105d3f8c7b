package clusterstate

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

// newcomer is a pod of namespace x and of this node whose status has these addresses.
func newcomer(name string, addrs ...string) *corev1.Pod {
	p := pod("x", name, "n1", "")
	p.UID = types.UID("uid-" + name)
	p.Status.PodIPs = nil
	for _, a := range addrs {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a})
	}
	return p
}

func sandbox(name, uid string, addrs ...string) Sandbox {
	s := Sandbox{Namespace: "x", Name: name, UID: types.UID(uid)}
	for _, a := range addrs {
		s.Addrs = append(s.Addrs, netip.MustParseAddr(a))
	}
	return s
}

// provenSandbox is a sandbox that routes prove.
func provenSandbox(name, uid string, addrs ...string) Sandbox {
	s := sandbox(name, uid, addrs...)
	s.Proven = true
	return s
}

// TestMisorderedSandboxes: a newer sandbox that does not count is reported, until the order is right.
func TestMisorderedSandboxes(t *testing.T) {
	const a, b, a6, b6 = "10.0.0.101", "10.0.0.102", "fd00::101", "fd00::102"
	for _, tc := range []struct {
		name        string
		newestFirst []Sandbox
		want        string
	}{
		{"in order", []Sandbox{sandbox("one", "uid-one", a, a6), sandbox("one", "uid-one", b, b6), sandbox("two", "uid-two", b, b6), sandbox("two", "uid-two", a, a6)}, ""},
		{"a later one of before", []Sandbox{sandbox("one", "uid-one", b, b6), sandbox("one", "uid-one", a, a6)}, "x/one"},
		{"of both", []Sandbox{sandbox("two", "uid-two", a), sandbox("one", "uid-one", b), sandbox("one", "uid-one", a), sandbox("two", "uid-two", b)}, "x/two x/one"},
		{"one family", []Sandbox{sandbox("one", "uid-one", b6), sandbox("one", "uid-one", a6)}, "x/one"},
		{"routes prove an older one", []Sandbox{sandbox("one", "uid-one", a), provenSandbox("one", "uid-one", b)}, "x/one"},
		{"another pod's later one", []Sandbox{sandbox("new", "uid-new", a), sandbox("one", "uid-one", a)}, "x/new"},
		{"another pod of that name", []Sandbox{sandbox("one", "uid-old", b), sandbox("one", "uid-one", a)}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newFrom(fixture())
			for _, p := range []*corev1.Pod{newcomer("one", a, a6), newcomer("two", b, b6), newcomer("new")} {
				c.Set(compile.NewPod(p))
			}
			c.SetSandboxes(tc.newestFirst)
			c.Snapshot()
			if got := strings.Join(c.Misordered(), " "); got != tc.want {
				t.Errorf("reports %q, want %q", got, tc.want)
			}
			c.SetSandboxes(nil)
			if got := c.Misordered(); len(got) > 0 {
				t.Errorf("still reports %q", got)
			}
		})
	}
}

// TestPodsOfAnotherNodeThatThisMachineRuns: the configured node name belongs to another machine.
func TestPodsOfAnotherNodeThatThisMachineRuns(t *testing.T) {
	far := newcomer("far", "10.0.0.103")
	far.Spec.NodeName = "n2"
	for _, tc := range []struct {
		name      string
		sandboxes []Sandbox
		want      string
	}{
		{"none", nil, ""},
		{"a pod of this node", []Sandbox{sandbox("near", "uid-near", "10.0.0.101")}, ""},
		{"a pod of another node", []Sandbox{sandbox("far", "uid-far", "10.0.0.103")}, "x/far n2"},
		{"a leftover of another pod of that name", []Sandbox{sandbox("far", "uid-old", "10.0.0.103")}, ""},
		{"a pod that is not known", []Sandbox{sandbox("gone", "uid-gone", "10.0.0.104")}, ""},
		{"pods of both", []Sandbox{sandbox("far", "uid-far", "10.0.0.103"), sandbox("near", "uid-near", "10.0.0.101")}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := New(Config{NodeName: "n1"})
			c.Set(compile.NewPod(newcomer("near", "10.0.0.101")))
			c.Set(compile.NewPod(far))
			c.SetSandboxes(tc.sandboxes)
			pod, node := c.Elsewhere()
			if got := strings.TrimSpace(pod + " " + node); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestSandboxesGiveAddressesToPods(t *testing.T) {
	const a, b = "10.0.0.101", "10.0.0.102"
	with := func(p *corev1.Pod, change func(*corev1.Pod)) *corev1.Pod {
		change(p)
		return p
	}
	youngest := func(p *corev1.Pod) { p.CreationTimestamp = metav1.Unix(1000, 0) }
	for _, tc := range []struct {
		name       string
		pods       []*corev1.Pod
		newestLast []Sandbox
		atA, atB   string // the pods at the addresses a and b
	}{
		{"a pod without addresses", []*corev1.Pod{newcomer("new")}, []Sandbox{sandbox("new", "uid-new", a, b)}, "x/new", "x/new"},
		{"no pod", nil, []Sandbox{sandbox("new", "uid-new", a)}, "", ""},
		{"another pod of that name", []*corev1.Pod{newcomer("new")}, []Sandbox{sandbox("new", "uid-old", a)}, "", ""},
		{"the sandbox goes before the status", []*corev1.Pod{newcomer("new", b)}, []Sandbox{sandbox("new", "uid-new", a)}, "x/new", ""},
		{"a sandbox of another pod of that name leaves the status as it is", []*corev1.Pod{newcomer("new", b)}, []Sandbox{sandbox("new", "uid-old", a)}, "", "x/new"},
		{"two pods swap their addresses", []*corev1.Pod{newcomer("one", a), newcomer("two", b)},
			[]Sandbox{sandbox("one", "uid-one", b), sandbox("two", "uid-two", a)}, "x/two", "x/one"},
		{"one of two pods is back, with the other one's address", []*corev1.Pod{newcomer("one", a), newcomer("two", b)},
			[]Sandbox{sandbox("one", "uid-one", b)}, "", "x/one"},
		{"the same, and the sandboxes of before are left", []*corev1.Pod{newcomer("one", a), newcomer("two", b)},
			[]Sandbox{sandbox("one", "uid-one", a), sandbox("two", "uid-two", b), provenSandbox("one", "uid-one", b)}, "", "x/one"},
		{"the sandboxes of before have the later times, and routes lead to the others", []*corev1.Pod{newcomer("one", a), newcomer("two", b)},
			[]Sandbox{provenSandbox("one", "uid-one", b), provenSandbox("two", "uid-two", a), sandbox("one", "uid-one", a), sandbox("two", "uid-two", b)}, "x/two", "x/one"},
		{"the sandboxes of before have the later times, and the statuses have the others", []*corev1.Pod{newcomer("one", a), newcomer("two", b)},
			[]Sandbox{sandbox("one", "uid-one", a), sandbox("two", "uid-two", b), sandbox("one", "uid-one", b), sandbox("two", "uid-two", a)}, "x/one", "x/two"},
		{"the same, and only one status is written", []*corev1.Pod{newcomer("one", a), newcomer("two")},
			[]Sandbox{sandbox("one", "uid-one", a), sandbox("two", "uid-two", b), sandbox("one", "uid-one", b), sandbox("two", "uid-two", a)}, "x/one", ""},
		{"a status confirms no sandbox with other addresses of its family", []*corev1.Pod{newcomer("one", a, b)},
			[]Sandbox{sandbox("one", "uid-one", a), sandbox("one", "uid-one", b)}, "", "x/one"},
		{"an older pod without a status", []*corev1.Pod{with(newcomer("old", a), youngest), newcomer("new")}, []Sandbox{sandbox("new", "uid-new", a)}, "x/new", ""},
		{"the newest sandbox of a pod", []*corev1.Pod{newcomer("new")}, []Sandbox{sandbox("new", "uid-new", b), sandbox("new", "uid-new", a)}, "x/new", ""},
		{"the newest of two with one address", []*corev1.Pod{newcomer("one"), newcomer("two")}, []Sandbox{sandbox("one", "uid-one", a), sandbox("two", "uid-two", a)}, "x/two", ""},
		{"a leftover does not count, however new", []*corev1.Pod{newcomer("two")}, []Sandbox{sandbox("two", "uid-two", a), sandbox("one", "uid-one", a)}, "x/two", ""},
		{"a pod of the node's network", []*corev1.Pod{with(newcomer("new"), func(p *corev1.Pod) { p.Spec.HostNetwork = true })}, []Sandbox{sandbox("new", "uid-new", a)}, "", ""},
		{"a pod that has ended", []*corev1.Pod{with(newcomer("new"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })}, []Sandbox{sandbox("new", "uid-new", a)}, "", ""},
		{"a pod of another node", []*corev1.Pod{with(newcomer("new"), func(p *corev1.Pod) { p.Spec.NodeName = "n2" })}, []Sandbox{sandbox("new", "uid-new", a)}, "", ""},
		{"an address of a pod that is being deleted", []*corev1.Pod{newcomer("new"), with(newcomer("old", a), func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} })},
			[]Sandbox{sandbox("new", "uid-new", a)}, "x/new", ""},
	} {
		var newestFirst []Sandbox
		for i := range tc.newestLast {
			newestFirst = append(newestFirst, tc.newestLast[len(tc.newestLast)-1-i])
		}
		for order, arrive := range map[string]func(*Cluster){
			"pods first": func(c *Cluster) {
				for _, p := range tc.pods {
					c.Set(compile.NewPod(p))
				}
				c.Snapshot()
				c.SetSandboxes(newestFirst)
			},
			"sandboxes first": func(c *Cluster) {
				c.SetSandboxes(newestFirst)
				c.Snapshot()
				for _, p := range tc.pods {
					c.Set(compile.NewPod(p))
				}
			},
		} {
			t.Run(tc.name+", "+order, func(t *testing.T) {
				c := newFrom(withPolicies())
				arrive(c)
				s := c.Snapshot()
				for addr, want := range map[string]string{a: tc.atA, b: tc.atB} {
					got := ""
					if e := s.Endpoint(netip.MustParseAddr(addr)); e != nil {
						got = e.String()
					}
					if got != want {
						t.Errorf("%s belongs to %q, want %q", addr, got, want)
					}
					if e := s.Endpoint(netip.MustParseAddr(addr)); e != nil && e.Ingress == nil {
						t.Errorf("%s has no policies", addr)
					}
				}
				c.SetSandboxes(nil)
				for _, p := range tc.pods {
					c.Delete(compile.KindPod, p.Namespace, p.Name)
				}
				s = c.Snapshot()
				for _, addr := range []string{a, b} {
					if e := s.Endpoint(netip.MustParseAddr(addr)); e != nil {
						t.Errorf("%s still belongs to %v", addr, e)
					}
				}
			})
		}
	}
}

// TestSandboxesAndStatus follows a pod from its sandbox to its status.
func TestSandboxesAndStatus(t *testing.T) {
	const a, b = "10.0.0.101", "10.0.0.102"
	c := newFrom(fixture())
	c.Set(compile.NewPod(newcomer("new")))
	if !c.SetSandboxes([]Sandbox{sandbox("new", "uid-new", a)}) {
		t.Error("a new address changes nothing")
	}
	if c.SetSandboxes([]Sandbox{sandbox("new", "uid-new", a)}) {
		t.Error("the same sandboxes change something")
	}
	at := func(addr string) string {
		if e := c.Snapshot().Endpoint(netip.MustParseAddr(addr)); e != nil {
			return e.String()
		}
		return ""
	}
	if at(a) != "x/new" {
		t.Fatalf("%s belongs to %q", a, at(a))
	}
	c.Set(compile.NewPod(newcomer("new", b))) // differs from the sandbox's address
	if at(a) != "x/new" || at(b) != "" {
		t.Errorf("with the status of an earlier sandbox: %q, %q", at(a), at(b))
	}
	c.SetSandboxes(nil)
	if at(a) != "" || at(b) != "x/new" {
		t.Errorf("with its status alone: %q, %q", at(a), at(b))
	}
	c.Set(compile.NewPod(newcomer("new", a)))
	c.SetSandboxes(nil)
	if at(a) != "x/new" || at(b) != "" {
		t.Errorf("without its sandbox: %q, %q", at(a), at(b))
	}
}

// TestPacketsAwaitStatusWhereAnAdministratorMayDeny: CN-35. Packets wait from a pod that other
// nodes do not know yet to their pods, if a rule there may deny them by the pod's labels.
func TestPacketsAwaitStatusWhereAnAdministratorMayDeny(t *testing.T) {
	const addr = "10.0.0.101"
	const local, remote, unknown, outside = "10.0.1.1", "10.0.2.1", "10.0.2.99", "192.0.2.1"
	for _, tc := range []struct {
		name, spec string
		waits      bool
	}{
		{"denies its labels", `ingress: [{action: Deny, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {pod: new}}}}]}]`, true},
		{"passes its labels", `ingress: [{action: Pass, from: [{namespaces: {}}]}]`, true},
		{"accepts its labels", `ingress: [{action: Accept, from: [{namespaces: {}}]}]`, false},
		{"denies other labels", `ingress: [{action: Deny, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {pod: a}}}}]}]`, false},
		{"denies what is sent", `egress: [{action: Deny, to: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {pod: new}}}}]}]`, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := fixture()
			in.Nodes[0].Spec.PodCIDRs, in.Nodes[1].Spec.PodCIDRs = []string{"10.0.0.0/24"}, []string{"10.0.2.0/24"}
			c := newFrom(in)
			c.Set(compile.NewPod(newcomer("new")))
			c.SetSandboxes([]Sandbox{sandbox("new", "uid-new", addr)})
			check := func(when string, waits bool) {
				t.Helper()
				s := c.Snapshot()
				send := func(to string) policy.Decision {
					return s.Evaluate(policy.Query{Packet: packet.Packet{Proto: packet.TCP,
						Src: netip.AddrPortFrom(netip.MustParseAddr(addr), 1), Dst: netip.AddrPortFrom(netip.MustParseAddr(to), 80)}})
				}
				for to, may := range map[string]bool{local: false, remote: true, unknown: true, outside: false} {
					if d := send(to); (d.Reason == policy.UnknownPod) != (waits && may) {
						t.Errorf("%s, to %s: %v, want waiting %v", when, to, d, waits && may)
					}
				}
				if got := len(s.Selected(policy.Egress)) > 0; got != waits && tc.name != "denies what is sent" {
					t.Errorf("%s: what it sends is steered: %v, want %v", when, got, waits)
				}
			}
			check("without a policy", false)
			p := &proposed.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
			mustRead(`{tier: Admin, priority: 1, subject: {namespaces: {matchLabels: {ns: z}}}, `+tc.spec+`}`, &p.Spec)
			c.Set(p)
			check("with the policy", tc.waits)
			c.Set(compile.NewPod(newcomer("new", addr)))
			check("with its status", false)
			c.Set(compile.NewPod(newcomer("new")))
			check("without its status again", tc.waits)
			c.Delete(compile.KindClusterNetworkPolicy, "", "p")
			check("without the policy again", false)
		})
	}
}
