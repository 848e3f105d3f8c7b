package main

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/pkg/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/policycache"
)

const (
	drawnNodes, drawnPods, drawnNamespaces = 5000, 150_000, 2000
	replicas                               = 10
)

// drawn is a cluster of namespaces of equal or of very unequal size (Zipf 1). Ten pods in a
// row are replicas of an application. Each namespace has five policies: it denies by default,
// its pods may reach one another, the pods of an ingress controller and those of monitoring may
// reach them, and they may reach DNS. Some have one more, with a peer of all pods of all
// namespaces. An application of each tenth namespace lets in one of another namespace.
type drawn struct {
	r      *rand.Rand
	sizes  []int
	groups map[[2]string]int // pods by namespace and application
	onNode [][]*corev1.Pod   // of the nodes that are evaluated
}

func draw(zipf bool, nodes int) *drawn {
	d := &drawn{r: rand.New(rand.NewPCG(18, 0)), sizes: make([]int, drawnNamespaces), groups: map[[2]string]int{}, onNode: make([][]*corev1.Pod, nodes)}
	sum := 0.0
	for i := range d.sizes {
		sum += weight(zipf, i)
	}
	for i := range d.sizes {
		d.sizes[i] = int(drawnPods * weight(zipf, i) / sum)
		for n := range d.sizes[i] {
			ns, app := drawnNamespace(i), fmt.Sprint("app-", n/replicas)
			d.groups[[2]string{ns, app}]++
			if node := d.r.IntN(drawnNodes); node < nodes {
				addr := netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(n)})
				pod := newPod(ns, fmt.Sprint(app, "-", n), app, ownNode, addr)
				pod.Labels = map[string]string{"app": app}
				d.onNode[node] = append(d.onNode[node], pod)
			}
		}
	}
	return d
}

func weight(zipf bool, i int) float64 {
	if zipf {
		return 1 / float64(i+1)
	}
	return 1
}

func drawnNamespace(i int) string { return fmt.Sprintf("ns-%d", i) }

// named selects a namespace, and of its pods those of an application if there is one.
func named(namespace, app string) networkingv1.NetworkPolicyPeer {
	p := networkingv1.NetworkPolicyPeer{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}}}
	if app != "" {
		p.PodSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	}
	return p
}

// policies returns those of namespace i. everyone is the share of namespaces, in percent, with a
// peer of all pods.
func (d *drawn) policies(i, everyone int) []*networkingv1.NetworkPolicy {
	policy := func(name string, spec networkingv1.NetworkPolicySpec) *networkingv1.NetworkPolicy {
		return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: drawnNamespace(i), Name: name}, Spec: spec}
	}
	in := func(peers ...networkingv1.NetworkPolicyPeer) networkingv1.NetworkPolicySpec {
		return networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{From: peers}}}
	}
	all := []*networkingv1.NetworkPolicy{
		policy("deny", networkingv1.NetworkPolicySpec{}),
		policy("own", in(networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{}})),
		policy("controller", in(named(drawnNamespace(drawnNamespaces-1), "app-0"))),
		policy("monitoring", in(named(drawnNamespace(drawnNamespaces-2), "app-0"))),
		policy("dns", networkingv1.NetworkPolicySpec{
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
			Egress: []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{
				named(drawnNamespace(drawnNamespaces-3), "app-0"), {PodSelector: &metav1.LabelSelector{}}}}},
		}),
	}
	if i%10 == 1 {
		client := in(named(drawnNamespace(i*7%drawnNamespaces), "app-1"))
		client.PodSelector.MatchLabels = map[string]string{"app": "app-0"}
		all = append(all, policy("client", client))
	}
	if i%100 >= 50 && i%100 < 50+everyone {
		all = append(all, policy("everyone", in(networkingv1.NetworkPolicyPeer{NamespaceSelector: &metav1.LabelSelector{}})))
	}
	return all
}

// watches returns what a node with these pods watches.
func (d *drawn) watches(pods []*corev1.Pod, everyone int) []clusterstate.PodSet {
	c := clusterstate.New(clusterstate.Config{NodeName: ownNode, Partial: true, Features: compile.AllFeatures()})
	local := map[string]bool{}
	for _, p := range pods {
		c.Set(compile.NewPod(p))
		local[p.Namespace] = true
	}
	for i := range drawnNamespaces {
		name := drawnNamespace(i)
		c.Set(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelMetadataName: name}}})
		if !local[name] {
			continue // its policies select no pod of the node
		}
		for _, p := range d.policies(i, everyone) {
			c.Set(p)
		}
	}
	c.Snapshot()
	return clusterstate.Cover(c.Needs(), policycache.MaxNeededWatches)
}

// count returns the pods of a set.
func (d *drawn) count(s clusterstate.PodSet) (n int) {
	selector, err := labels.Parse(s.Labels)
	if err != nil {
		panic(err)
	}
	for group, pods := range d.groups {
		if (s.Namespace == "" || s.Namespace == group[0]) && selector.Matches(labels.Set{"app": group[1]}) {
			n += pods
		}
	}
	return n
}

// BenchmarkNeededPods reports what nodes ask for with --pod-watches=needed: the share of the
// cluster's pods, a pod as often as watches have it, which is the share of lists and of events if
// all pods change equally often. Nothing of it depends on the machine.
func BenchmarkNeededPods(b *testing.B) {
	const nodes = 40
	for _, zipf := range []bool{false, true} {
		d := draw(zipf, nodes)
		for _, everyone := range []int{0, 1} {
			b.Run(fmt.Sprintf("zipf=%v/everyone=%d%%", zipf, everyone), func(b *testing.B) {
				for range b.N {
					watches, asked, all := 0, 0, 0
					for _, pods := range d.onNode {
						asked += len(pods)
						for _, set := range d.watches(pods, everyone) {
							watches++
							asked += d.count(set)
							if set == (clusterstate.PodSet{}) {
								all++
							}
						}
					}
					b.ReportMetric(100*float64(asked)/nodes/drawnPods, "%pods")
					b.ReportMetric(float64(watches)/nodes, "watches")
					b.ReportMetric(100*float64(all)/nodes, "%nodes-with-all")
				}
			})
		}
	}
}
