package reachability

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// New pods have addresses like those of other pods, and no object has the same.
func TestNewPodsHaveAddresses(t *testing.T) {
	found := 0
	forClusters(t, 300, func(t *testing.T, g gen, in clusterstate.Input) {
		before, after := AddNewPods(in, g.changed(in))
		known := map[string]bool{}
		for _, pod := range in.Pods {
			for _, addr := range compile.Addresses(pod) {
				known[addr.String()] = true
			}
		}
		c := New(before)
		for _, pod := range before.Pods[len(in.Pods):] {
			for _, ip := range pod.Status.PodIPs {
				found++
				if known[ip.IP] {
					t.Errorf("%s has the address %s of another pod", pod.Namespace, ip.IP)
				}
				known[ip.IP] = true
			}
			if _, err := c.Endpoint(pod.Namespace + "/" + newPod); err != nil {
				t.Error(err)
			}
		}

		if len(before.Pods)-len(in.Pods) != len(after.Pods)-len(in.Pods) {
			t.Error("the clusters have different new pods")
		}
	})
	if found < 300 {
		t.Errorf("only %d addresses", found)
	}
}

// Without pods, the addresses of new pods cannot be guessed.
func TestNoNewPodsWithoutPods(t *testing.T) {
	in := clusterstate.Input{Namespaces: []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "x"}}}}
	if before, after := AddNewPods(in, in); len(before.Pods)+len(after.Pods) != 0 {
		t.Errorf("got %d pods", len(before.Pods)+len(after.Pods))
	}
}

// New pods share the blocks of an existing pod, even if a policy has a block for only the
// pod with the highest address.
func TestNewPodsBesidePodsNamedByAddress(t *testing.T) {
	for _, tc := range []struct {
		name, pods, blocks, want string
	}{
		{"the highest", "10.0.1.1 10.0.1.9", "10.0.1.9/32", "x 10.0.1.2, y 10.0.1.3"},
		{"each but one", "10.0.1.1 10.0.1.4 10.0.1.9", "10.0.1.9/32 10.0.1.1/32", "x 10.0.1.5, y 10.0.1.6"},
		{"a block with one free address", "10.0.1.1 10.0.1.8", "10.0.1.8/31", "x 10.0.1.9, y 10.0.1.2"},
		{"in one family", "10.0.1.9 2001:db8::1", "10.0.1.9/32", "x 2001:db8::2, y 2001:db8::3"},
		{"the last address of all", "10.0.1.1 255.255.255.255", "", "x 10.0.1.2, y 10.0.1.3"},
		{"each", "10.0.1.1 10.0.1.9", "10.0.1.1/32 10.0.1.9/32", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := clusterstate.Input{Namespaces: []*corev1.Namespace{
				{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, {ObjectMeta: metav1.ObjectMeta{Name: "y"}},
			}}
			for _, ip := range strings.Fields(tc.pods) {
				in.Pods = append(in.Pods, pod("x/"+ip, "n1", ip))
			}
			p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "p"}}
			for _, cidr := range strings.Fields(tc.blocks) {
				p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{
					From: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: cidr}}},
				})
			}
			in.Policies = append(in.Policies, p)
			var got []string
			_, after := AddNewPods(in, in)
			for _, pod := range after.Pods[len(in.Pods):] {
				got = append(got, pod.Namespace+" "+pod.Status.PodIPs[0].IP)
			}

			if got := strings.Join(got, ", "); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

// A pod without an address gets the same one in both clusters.
func TestPodsWithoutAddressesGetOne(t *testing.T) {
	waiting := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "waiting"}}
	ended := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "ended"}, Status: corev1.PodStatus{Phase: corev1.PodFailed}}
	in := clusterstate.Input{Pods: []*corev1.Pod{pod("x/a", "n1", "10.0.1.1"), waiting, ended}}
	before, after := AddNewPods(in, in)
	for _, got := range []clusterstate.Input{before, after} {
		c := New(got)
		if s, err := c.Endpoint("x/waiting"); err != nil || s.v4.String() != "10.0.1.3" {
			t.Errorf("got %v, %v", s.v4, err)
		}
		if _, err := c.Endpoint("x/ended"); err == nil {
			t.Error("a pod that has ended has an address")
		}
	}

	if len(waiting.Status.PodIPs) > 0 {
		t.Error("the pod has changed")
	}
}

// The changes that Compare reports between a pod and itself are those between the pod and
// another one with the same labels and ports.
func TestCompareFindsChangesOfTwins(t *testing.T) {
	changes := 0
	forClusters(t, 600, func(t *testing.T, g gen, in clusterstate.Input) {
		for i, pod := range in.Pods {
			in.Pods[i] = modified(pod.DeepCopy(), func(p *corev1.Pod) {
				yes := true
				p.OwnerReferences = []metav1.OwnerReference{{Kind: "StatefulSet", Name: p.Name, Controller: &yes}}
			})
		}
		changed := g.changed(in)
		before, after := New(in), New(changed)
		d, err := Compare(Names{}, before, after, PortRanges(before, after), nil, FirstCommon)
		if err != nil {
			t.Fatal(err)
		}
		reported := map[string]bool{}
		for _, c := range d.Changes {
			for _, cell := range c.Cells() {
				if cell.From == cell.To {
					for _, span := range c.Traffic {
						reported[fmt.Sprint(cell.From, span)] = true
					}
				}
			}
		}
		want := map[string]bool{}
		for _, pod := range in.Pods {
			twin, ok := twinOf(pod, in, changed)
			s, known := before.endpoints[pod.Namespace+"/"+pod.Name]
			if !known || s.Kind != Pod {
				continue
			}
			if !ok { // no free address is in the same blocks
				maps.DeleteFunc(reported, func(key string, _ bool) bool { return strings.HasPrefix(key, s.Name) })
				continue
			}
			twinBefore, twinAfter := New(twin(in)), New(twin(changed))
			for _, span := range d.Checked {
				reaches := func(c *Cluster) bool {
					from, to := c.endpoints[s.Name], c.endpoints[pod.Namespace+"/twin"]
					return c.Evaluate(&from, &to, span.Port(), FirstCommon).Allowed
				}
				if reaches(twinBefore) != reaches(twinAfter) {
					want[fmt.Sprint(s.Name, span)] = true
				}
			}
		}
		changes += len(want)
		for key := range reported {
			if !want[key] {
				t.Errorf("%s does not change", key)
			}
		}
		for key := range want {
			if !reported[key] {
				t.Errorf("%s changes", key)
			}
		}
	})
	if changes < 100 {
		t.Errorf("only %d changes", changes)
	}
}

// twinOf returns a function that adds a copy of pod to a cluster, with addresses in the
// same blocks. ok is false if there are none.
func twinOf(pod *corev1.Pod, before, after clusterstate.Input) (add func(clusterstate.Input) clusterstate.Input, ok bool) {
	a := newAllocator(before, after)
	a.starts = nil
	for _, addr := range compile.Addresses(pod) {
		a.starts = append(a.starts, []netip.Addr{addr})
	}
	ips := a.addresses()
	twin := modified(pod.DeepCopy(), func(p *corev1.Pod) {
		p.Name, p.UID, p.Status.PodIPs, p.Status.PodIP = "twin", "twin", ips, ""
	})
	return func(in clusterstate.Input) clusterstate.Input {
		in.Pods = append(slices.Clone(in.Pods), twin)
		return in
	}, len(ips) == len(a.starts) && len(ips) > 0
}
