package reachability

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/compile"
)

// newPod is the name of the pods that AddNewPods adds. No pod of a cluster may have it.
const newPod = "new pod"

// isNewPod reports whether an endpoint of this name is a pod that AddNewPods has added.
func isNewPod(name string) bool { return strings.HasSuffix(name, "/"+newPod) }

// AddNewPods returns two clusters with a pod in each namespace that both have, or in those
// of namespaces alone: one without labels and ports, which stands for pods that no policy
// names and that may come at any time. Its name is "new pod", and its address one that no
// object of the clusters has, in the same blocks of the policies as another pod's. Pods that
// have no address yet get such an address, too. Where there is no such address, as without
// pods or if blocks of policies are those of one pod each, no pods are added.
func AddNewPods(before, after clusterstate.Input, namespaces ...string) (clusterstate.Input, clusterstate.Input) {
	a := newAllocator(before, after)
	known := namespacesOf(after)
	var pods []*corev1.Pod
	for _, name := range namespacesOf(before) {
		if !slices.Contains(known, name) || len(namespaces) > 0 && !slices.Contains(namespaces, name) {
			continue
		}
		ips := a.addresses()
		if len(ips) == 0 {
			break
		}
		pods = append(pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: newPod},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: ips},
		})
	}
	ips := map[string][]corev1.PodIP{}
	before.Pods = slices.Concat(a.addressed(before.Pods, ips), pods)
	after.Pods = slices.Concat(a.addressed(after.Pods, ips), pods)
	return before, after
}

// WithAddresses returns a cluster whose pods all have addresses: those that have none yet get
// one as AddNewPods gives them.
func WithAddresses(in clusterstate.Input) clusterstate.Input {
	in.Pods = newAllocator(in).addressed(in.Pods, map[string][]corev1.PodIP{})
	return in
}

// addressed returns pods with addresses for those that have none yet. ips are those by
// namespace and name.
func (a *allocator) addressed(pods []*corev1.Pod, ips map[string][]corev1.PodIP) []*corev1.Pod {
	all := slices.Clone(pods)
	for i, pod := range all {
		if pod.Spec.HostNetwork || compile.Ended(pod) || len(compile.Addresses(pod)) > 0 {
			continue
		}
		name := pod.Namespace + "/" + pod.Name
		if ips[name] == nil {
			ips[name] = a.addresses()
		}
		started := *pod
		started.Status.PodIPs = ips[name]
		all[i] = &started
	}
	return all
}

// namespacesOf returns the namespaces of a cluster, sorted.
func namespacesOf(in clusterstate.Input) []string {
	var names []string
	for _, ns := range in.Namespaces {
		names = append(names, ns.Name)
	}
	for _, pod := range in.Pods {
		names = append(names, pod.Namespace)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// allocator finds addresses that no object has.
type allocator struct {
	// starts are, for each family that pods have, the addresses behind which free ones are
	// looked for. The next one is used if there is none behind the first.
	starts [][]netip.Addr
	taken  map[netip.Addr]bool
	blocks []netip.Prefix
}

func newAllocator(inputs ...clusterstate.Input) *allocator {
	a := &allocator{taken: map[netip.Addr]bool{}}
	var clusters []*Cluster
	byFamily := map[bool][]netip.Addr{} // by whether it is IPv4
	for _, in := range inputs {
		c := New(in)
		clusters = append(clusters, c)
		for addr := range c.nodes {
			a.taken[addr] = true
		}
		for _, pod := range in.Pods {
			for _, addr := range compile.Addresses(pod) {
				a.taken[addr] = true
				if !pod.Spec.HostNetwork {
					byFamily[addr.Is4()] = append(byFamily[addr.Is4()], addr)
				}
			}
		}
	}
	a.blocks, _ = prefixes(clusters)
	for _, v4 := range []bool{true, false} {
		if addrs := byFamily[v4]; len(addrs) > 0 {
			slices.SortFunc(addrs, func(x, y netip.Addr) int { return y.Compare(x) }) // the highest first
			a.starts = append(a.starts, slices.Compact(addrs))
		}
	}
	return a
}

// addresses returns a new address of each family that pods have, as far as there are any.
func (a *allocator) addresses() []corev1.PodIP {
	var ips []corev1.PodIP
	for i := range a.starts {
		for len(a.starts[i]) > 0 {
			if addr, ok := a.behind(a.starts[i][0]); ok {
				a.taken[addr], a.starts[i][0] = true, addr
				ips = append(ips, corev1.PodIP{IP: addr.String()})
				break
			}
			a.starts[i] = a.starts[i][1:]
		}
	}
	return ips
}

// behind returns the next address behind another one that is free and in the same blocks.
func (a *allocator) behind(addr netip.Addr) (netip.Addr, bool) {
	const tries = 1 << 16
	like := membership(addr, a.blocks)
	smallest := netip.PrefixFrom(addr, 0)
	for _, b := range a.blocks {
		if b.Contains(addr) && b.Bits() > smallest.Bits() {
			smallest = b
		}
	}
	for range tries {
		if addr = addr.Next(); !smallest.Contains(addr) {
			break
		}
		if !a.taken[addr] && membership(addr, a.blocks) == like {
			return addr, true
		}
	}
	return netip.Addr{}, false
}
