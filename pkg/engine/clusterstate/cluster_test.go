package clusterstate

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

// fixture is a cluster of the namespaces x, y, z with the pods a, b, c each, as
// the node n1 sees it. The pods of z run on n2.
func fixture() Input {
	in := Input{NodeName: "n1", Features: compile.AllFeatures()}
	for i, ns := range []string{"x", "y", "z"} {
		in.Namespaces = append(in.Namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns, Labels: map[string]string{"ns": ns}}})
		for j, name := range []string{"a", "b", "c"} {
			in.Pods = append(in.Pods, pod(ns, name, map[string]string{"x": "n1", "y": "n1", "z": "n2"}[ns], fmt.Sprintf("10.0.%d.%d", i, j+1)))
		}
	}
	in.Nodes = []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, {ObjectMeta: metav1.ObjectMeta{Name: "n2"}}}
	return in
}

// withPolicies is the fixture with a policy of each kind.
func withPolicies() Input {
	in := fixture()
	anp, banp, cnp := &v1alpha1.AdminNetworkPolicy{}, &v1alpha1.BaselineAdminNetworkPolicy{}, &proposed.ClusterNetworkPolicy{}
	anp.Name, banp.Name, cnp.Name = "a", "default", "a"
	mustRead(`{priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}`, &anp.Spec)
	mustRead(`{subject: {namespaces: {}}}`, &banp.Spec)
	mustRead(`{tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}`, &cnp.Spec)
	in.Policies = []compile.Object{netpol("x", "p", `{podSelector: {}}`), anp, banp, cnp}
	return in
}

func pod(ns, name, node, ip string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: map[string]string{"pod": name}},
		Spec:       corev1.PodSpec{NodeName: node},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: ip}}},
	}
}

func netpol(ns, name, spec string) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	mustRead(spec, &p.Spec)
	return p
}

func mustRead(spec string, into any) {
	if err := yaml.UnmarshalStrict([]byte(spec), into); err != nil {
		panic(err)
	}
}

// world is all objects of a small cluster, by kind and name.
type world struct {
	r          *rand.Rand
	pods       map[string]*corev1.Pod
	namespaces map[string]*corev1.Namespace
	nodes      map[string]*corev1.Node
	policies   map[string]*networkingv1.NetworkPolicy
	admin      map[string]*v1alpha1.AdminNetworkPolicy
}

func newWorld(seed uint64) *world {
	return &world{
		r:          rand.New(rand.NewPCG(seed, 0)),
		pods:       map[string]*corev1.Pod{},
		namespaces: map[string]*corev1.Namespace{},
		nodes:      map[string]*corev1.Node{},
		policies:   map[string]*networkingv1.NetworkPolicy{},
		admin:      map[string]*v1alpha1.AdminNetworkPolicy{},
	}
}

func (w *world) pick(names ...string) string { return names[w.r.IntN(len(names))] }

func (w *world) addr() string { return fmt.Sprintf("10.0.0.%d", w.r.IntN(8)) }

// change changes, adds or deletes an object of w and tells c about it. It returns a description and
// what c reported.
func (w *world) change(c *Cluster) (what string, reported bool) {
	name, ns := w.pick("a", "b", "c"), w.pick("x", "y")
	del := w.r.IntN(3) == 0
	switch w.r.IntN(6) {
	case 0, 1:
		p := pod(ns, name, w.pick("n1", "n2"), w.addr())
		p.Labels = map[string]string{"pod": w.pick("a", "b")}
		if w.r.IntN(3) == 0 {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: w.addr()})
		}
		p.Spec.HostNetwork = w.r.IntN(8) == 0
		p.CreationTimestamp.Time = p.CreationTimestamp.AddDate(2000, 0, w.r.IntN(3))
		if old := w.pods[ns+"/"+name]; old != nil && w.r.IntN(3) > 0 {
			p = old.DeepCopy()
			p.DeletionTimestamp = nil
			if old.DeletionTimestamp == nil {
				p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
			}
		}
		reported = apply(c, compile.KindPod, w.pods, p, del, func(p *corev1.Pod) any { return compile.NewPod(p) })
	case 2:
		o := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns, Labels: map[string]string{"ns": w.pick("x", "y")}}}
		reported = apply(c, compile.KindNamespace, w.namespaces, o, del, itself)
	case 3:
		o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.pick("n1", "n2"), Labels: map[string]string{"node": w.pick("n1", "n2")}}}
		o.Spec.PodCIDR = w.pick("", "10.0.0.0/30", "10.0.0.4/30")
		o.Status.Addresses = []corev1.NodeAddress{{Address: w.addr()}, {Address: "a.host"}}
		reported = apply(c, compile.KindNode, w.nodes, o, del, itself)
	case 4:
		o := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
		mustRead(w.pick(`{podSelector: {}}`, `{podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{namespaceSelector: {matchLabels: {ns: x}}}]}]}`,
			`{podSelector: {matchLabels: {pod: b}}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.0.0.0/31}}]}]}`, `{podSelector: {}, ingress: [{from: [{}]}]}`), &o.Spec)
		reported = apply(c, compile.KindNetworkPolicy, w.policies, o, del, itself)
	default:
		o := &v1alpha1.AdminNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
		mustRead(fmt.Sprintf(w.pick(`{priority: %d, subject: {namespaces: {matchLabels: {ns: x}}}, ingress: [{action: Deny, from: [{namespaces: {matchLabels: {ns: "y"}}}]}]}`,
			`{priority: %d, subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {pod: a}}}}, egress: [{action: Allow, to: [{networks: [10.0.0.2/31]}]}, {action: Deny, to: [{nodes: {matchLabels: {node: n1}}}]}]}`,
			`{priority: %d, subject: {}}`), w.r.IntN(3)), &o.Spec)
		reported = apply(c, compile.KindAdminNetworkPolicy, w.admin, o, del, itself)
	}
	return fmt.Sprintf("%s/%s", ns, name), reported
}

// apply sets or deletes an object in both.
func apply[O metav1.Object](c *Cluster, kind *compile.Kind, objects map[string]O, o O, del bool, as func(O) any) bool {
	key := o.GetNamespace() + "/" + o.GetName()
	if del {
		delete(objects, key)
		return c.Delete(kind, o.GetNamespace(), o.GetName())
	}
	objects[key] = o
	return c.Set(as(o))
}

func itself[O any](o O) any { return o }

func (w *world) input() Input {
	var policies []compile.Object
	for _, o := range w.policies {
		policies = append(policies, o)
	}
	for _, o := range w.admin {
		policies = append(policies, o)
	}
	return Input{
		NodeName: "n1", Features: compile.AllFeatures(),
		Namespaces: slices.Collect(maps.Values(w.namespaces)),
		Pods:       slices.Collect(maps.Values(w.pods)),
		Nodes:      slices.Collect(maps.Values(w.nodes)),
		Policies:   policies,
	}
}

// TestClusterFollowsLikeCompile compares, after each change, a Cluster with a new one of the same
// objects. It takes a snapshot only if verdicts may have changed. With AwaitNamespaces, pods of
// other nodes without a known namespace count as absent.
func TestClusterFollowsLikeCompile(t *testing.T) {
	for seed := range uint64(200) {
		w := newWorld(seed)
		await := seed%4 == 0
		c := New(Config{NodeName: "n1", Features: compile.AllFeatures(), AwaitNamespaces: await})
		before, differs := c.Snapshot(), false
		for step := range 60 {
			what, reported := w.change(c)
			differs = differs || reported
			if w.r.IntN(3) > 0 {
				continue // several changes in one snapshot
			}
			if got, want := c.Len(compile.KindPod), len(w.pods); got != want {
				t.Fatalf("seed %d, step %d (%s): %d pods, want %d", seed, step, what, got, want)
			}
			s := before
			if differs {
				s = c.Snapshot()
			}
			in := w.input()
			if await {
				in.Pods = slices.DeleteFunc(in.Pods, func(p *corev1.Pod) bool {
					return w.namespaces["/"+p.Namespace] == nil && p.Spec.NodeName != in.NodeName
				})
			}
			fresh := New(Config{NodeName: in.NodeName, Features: in.Features, AwaitNamespaces: await})
			if got, want := describe(s), describe(fresh.setInput(in).Snapshot()); got != want {
				t.Fatalf("seed %d, step %d (%s): the cluster is\n%s\nwant\n%s", seed, step, what, got, want)
			}
			if s.SameLocal(before) && local(s) != local(before) {
				t.Fatalf("seed %d, step %d (%s): a pod of the node has changed from %s to %s", seed, step, what, local(before), local(s))
			}
			before, differs = s, false
		}
	}
}

// local prints what a snapshot contains about the pods of its node.
func local(s *policy.Snapshot) string {
	var out strings.Builder
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		fmt.Fprintln(&out, s.Selected(d), s.Ranges(d), s.AuditedIn(d))
	}
	fmt.Fprintln(&out, s.SelectedToHost(), s.SelectedForNames(), s.AuditedToHost())
	for _, a := range s.Local() {
		e := s.Endpoint(a)
		fmt.Fprintf(&out, "%v %d %p %p %p\n", a, e.ID, e.Ingress, e.Egress, e.Audited)
	}
	return out.String()
}

// describe prints what a snapshot decides for the addresses of a world.
func describe(s *policy.Snapshot) string {
	var out strings.Builder
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		fmt.Fprintln(&out, d, s.Selected(d), s.Ranges(d))
	}
	fmt.Fprintln(&out, "host", s.SelectedToHost(), "local", s.Local(), "addresses", s.Len())
	for _, f := range s.Findings() {
		fmt.Fprintln(&out, f)
	}
	for a := range 9 {
		src := netip.AddrFrom4([4]byte{10, 0, 0, byte(a)})
		fmt.Fprintln(&out, src, s.Endpoint(src))
		for b := range 9 {
			dst := netip.AddrFrom4([4]byte{10, 0, 0, byte(b)})
			p := packet.Packet{Src: netip.AddrPortFrom(src, 1), Dst: netip.AddrPortFrom(dst, 80), Proto: packet.TCP}
			fmt.Fprintln(&out, p, s.Evaluate(policy.Query{Packet: p}))
		}
	}
	return out.String()
}

// Selectors match the labels that the API shows, none that a server would add.
func TestNamespacesHaveTheirLabelsOnly(t *testing.T) {
	shown := map[string]string{"ns": "x"}
	s := New(Config{NodeName: "n1"}).setInput(fixture()).Snapshot()
	if got := s.Endpoint(netip.MustParseAddr("10.0.0.1")).NamespaceLabels; !got.Equal(policy.NewLabels(shown)) {
		t.Errorf("the namespace has the labels %v, want %v", got, shown)
	}
}

func TestSetReportsChanges(t *testing.T) {
	in := withPolicies()
	c := New(Config{NodeName: "n1", Features: compile.AllFeatures()})
	objects := func() []any {
		all := []any{compile.NewPod(in.Pods[0].DeepCopy()), in.Namespaces[0].DeepCopy(), in.Nodes[0].DeepCopy()}
		for _, o := range in.Policies {
			all = append(all, o.DeepCopyObject())
		}
		return all
	}
	for _, o := range objects() {
		if !c.Set(o) {
			t.Errorf("%T is no change at first", o)
		}
	}
	for _, o := range objects() {
		if c.Set(o) {
			t.Errorf("%T is a change when it says the same", o)
		}
	}
}

// TestPodsOfOtherNodesThatMatter is about the events in the lives of two pods.
func TestPodsOfOtherNodesThatMatter(t *testing.T) {
	const local, other = "n1", "n2"
	unaddressed := func(p *corev1.Pod) { p.Status.PodIPs = nil }
	terminating := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }
	relabelled := func(p *corev1.Pod) { p.Labels = map[string]string{"pod": "b"} }
	ended := func(p *corev1.Pod) { terminating(p); p.Status.Phase = corev1.PodSucceeded }
	host := func(p *corev1.Pod) { p.Spec.HostNetwork = true }
	c := New(Config{NodeName: local, Features: compile.AllFeatures()})
	for _, tt := range []struct {
		what, name, node string
		how              []func(*corev1.Pod) // nil deletes the pod
		matters          bool
	}{
		{"is created", "a", "", []func(*corev1.Pod){unaddressed}, false},
		{"is scheduled, so that packets may come from it", "a", other, []func(*corev1.Pod){unaddressed}, true},
		{"runs", "a", other, []func(*corev1.Pod){}, true},
		{"gets labels", "a", other, []func(*corev1.Pod){relabelled}, true},
		{"terminates", "a", other, []func(*corev1.Pod){relabelled, terminating}, false},
		{"terminates with other labels", "a", other, []func(*corev1.Pod){terminating}, true},
		{"is said not to terminate", "a", other, []func(*corev1.Pod){}, false},
		{"has the address of the other one", "b", other, []func(*corev1.Pod){}, true},
		{"terminates and gives the address to the other one", "b", other, []func(*corev1.Pod){terminating}, true},
		{"has ended", "b", other, []func(*corev1.Pod){ended}, true},
		{"that has ended is deleted", "b", other, nil, false},
		{"that runs is deleted", "a", other, nil, true},
		{"has the network of its node", "a", other, []func(*corev1.Pod){host}, false},
		{"moves to this node", "a", local, []func(*corev1.Pod){host}, true},
		{"terminates on this node", "a", local, []func(*corev1.Pod){host, terminating}, true},
		{"moves away", "a", other, []func(*corev1.Pod){host, terminating}, true},
		{"that has the network of its node is deleted", "a", other, nil, false},
	} {
		t.Run("a pod "+tt.what, func(t *testing.T) {
			got := false
			if tt.how == nil {
				got = c.Delete(compile.KindPod, "x", tt.name)
			} else {
				p := pod("x", tt.name, tt.node, "10.0.0.1")
				for _, f := range tt.how {
					f(p)
				}
				got = c.Set(compile.NewPod(p))
			}
			if got != tt.matters {
				t.Errorf("it is reported that verdicts can differ: %v", got)
			}
			c.Snapshot()
		})
	}
}

func TestClusterCountsNamesAndDeletes(t *testing.T) {
	c := newFrom(withPolicies())
	for _, tc := range []struct {
		kind *compile.Kind
		want string
	}{
		{compile.KindPod, "x/a x/b x/c y/a y/b y/c z/a z/b z/c"},
		{compile.KindNamespace, "/x /y /z"},
		{compile.KindNode, "/n1 /n2"},
		{compile.KindNetworkPolicy, "x/p"},
		{compile.KindAdminNetworkPolicy, "/a"},
		{compile.KindBaselineAdminNetworkPolicy, "/default"},
		{compile.KindClusterNetworkPolicy, "/a"},
	} {
		t.Run(tc.kind.Name, func(t *testing.T) {
			var names []string
			for ns, name := range c.Names(tc.kind) {
				names = append(names, ns+"/"+name)
			}
			slices.Sort(names)
			if got := strings.Join(names, " "); got != tc.want || c.Len(tc.kind) != len(names) {
				t.Errorf("%s: %s (%d), want %s", tc.kind, got, c.Len(tc.kind), tc.want)
			}
			for _, key := range names {
				ns, name, _ := strings.Cut(key, "/")
				if !c.Delete(tc.kind, ns, name) || c.Delete(tc.kind, ns, name) {
					t.Errorf("%s %s is not deleted once", tc.kind, key)
				}
			}
			if n := c.Len(tc.kind); n != 0 {
				t.Errorf("%s: %d are left", tc.kind, n)
			}
		})
	}
	if n := len(c.namespaces); n != 0 {
		t.Errorf("%d namespaces are left", n)
	}
}

// Cached evaluations are lost with the chain and with the peer.
func TestChainsAndEndpointsSurviveOtherChanges(t *testing.T) {
	in := fixture()
	in.Policies = append(in.Policies, netpol("x", "p", `{podSelector: {}}`))
	c := New(Config{NodeName: "n1", Features: compile.AllFeatures()})
	setAll(c, in.Namespaces)
	setAll(c, in.Policies)
	for _, p := range in.Pods {
		c.Set(compile.NewPod(p))
	}
	before := c.Snapshot()
	c.Set(netpol("y", "p", `{podSelector: {}}`))
	c.Set(compile.NewPod(pod("z", "d", "n2", "10.0.2.9")))
	c.Set(compile.NewPod(pod("x", "d", "n1", "10.0.0.9")))
	after := c.Snapshot()
	xa, za := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.2.1")
	for name, addr := range map[string]netip.Addr{"x/a": xa, "z/a": za} {
		if before.Endpoint(addr) != after.Endpoint(addr) {
			t.Errorf("%s is another endpoint", name)
		}
	}
	if a, d := after.Endpoint(xa), after.Endpoint(netip.MustParseAddr("10.0.0.9")); a.Ingress != d.Ingress {
		t.Error("a new pod of the same policies has a chain of its own")
	}
	c.Set(netpol("x", "p", `{podSelector: {}, policyTypes: [Egress]}`))
	for range 3 {
		c.Set(compile.NewPod(pod("x", "d", "n1", "10.0.0.9")))
		c.Snapshot()
	}
	if n := len(c.chains.built); n != 2 {
		t.Errorf("%d chains are kept, want those of x and of y", n)
	}
}

// The cost of a pod's change is the same in a large cluster: counted in
// allocations, which do not depend on the machine.
func TestChangeCostDoesNotDependOnClusterSize(t *testing.T) {
	cost := func(pods int) float64 {
		in := busy(pods).withPolicies("spread", 1000)
		c := clusterOf(in)
		moved := []*corev1.Pod{in.Pods[7].DeepCopy(), in.Pods[7].DeepCopy()}
		moved[0].Labels["app"], moved[1].Labels["app"] = "one", "two"
		i := 0
		return testing.AllocsPerRun(100, func() {
			i++
			c.Set(compile.NewPod(moved[i%2]))
			c.Snapshot()
		})
	}
	if small, large := cost(1000), cost(20000); large > small+2 {
		t.Errorf("a change costs %v allocations among 1,000 pods, %v among 20,000", small, large)
	}
}

func clusterOf(in Input) *Cluster {
	c := newFrom(in)
	c.Snapshot()
	return c
}

func TestUnknownKindsPanic(t *testing.T) {
	mustPanic := func(name string, f func(c *Cluster)) {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("it does not panic")
				}
			}()
			f(New(Config{}))
		})
	}
	unknown := &compile.Kind{Name: "AdminNetworkPolicy"} // not the value in compile.Kinds
	mustPanic("Set", func(c *Cluster) { c.Set(&corev1.Service{}) })
	mustPanic("Delete", func(c *Cluster) { c.Delete(unknown, "", "a") })
	mustPanic("Names", func(c *Cluster) { c.Names(unknown) })
	mustPanic("Len", func(c *Cluster) { c.Len(unknown) })
}
