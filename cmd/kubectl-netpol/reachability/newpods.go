package reachability

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/gaissmai/bart"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// newPod is the name of the pods that AddNewPods adds. It contains a space, so no pod of a
// cluster can have it.
const newPod = "new pod"

// IsNewName reports whether AddNewPods or WithNewPods added the pod of this name.
func IsNewName(name string) bool { return strings.HasSuffix(name, "/"+newPod) }

// AddNewPods adds a pod without labels and ports to each namespace that both clusters have
// or, if namespaces are given, to those. It represents pods that may be created at any time
// and that no policy names. Its name is "new pod". Its address belongs to no object of the
// clusters and is in the same blocks of policies as another pod's address. Pods without an
// address get one in the same way. Without such an address no pod is added, for example if
// there are no pods or each block is that of one pod.
func AddNewPods(before, after clusterstate.Input, namespaces ...string) (clusterstate.Input, clusterstate.Input) {
	a := newAllocator(before, after)
	known := namespacesOf(after)
	pods := a.newPods(slices.DeleteFunc(namespacesOf(before), func(name string) bool {
		return !slices.Contains(known, name) || len(namespaces) > 0 && !slices.Contains(namespaces, name)
	}))
	ips := map[string][]corev1.PodIP{}
	before.Pods = slices.Concat(a.addressed(before.Pods, ips), pods)
	after.Pods = slices.Concat(a.addressed(after.Pods, ips), pods)
	return before, after
}

// newPods returns a new pod in each namespace, as far as there are addresses.
func (a *allocator) newPods(namespaces []string) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, name := range namespaces {
		ips := a.addresses()
		if len(ips) == 0 {
			break
		}
		pods = append(pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: newPod},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: ips},
		})
	}
	return pods
}

// NewNamespace is the name of the namespace that WithNewPods adds. It contains a space, so no
// namespace of a cluster can have it.
const NewNamespace = "new namespace"

// WithNewPods returns the cluster with new pods as AddNewPods adds them, and with one in a
// namespace that may come, without labels but that of its name.
func WithNewPods(in clusterstate.Input, namespaces ...string) clusterstate.Input {
	if len(namespaces) == 0 {
		namespaces = namespacesOf(in)
	}
	return newAllocator(in).withNewPods(namespaces, in)[0]
}

// WithNewPodsOfBoth is WithNewPods for two states of a cluster, where each new pod has the same
// addresses.
func WithNewPodsOfBoth(before, after clusterstate.Input) (clusterstate.Input, clusterstate.Input) {
	both := newAllocator(before, after).withNewPods(sortedUnion(namespacesOf(before), namespacesOf(after)), before, after)
	return both[0], both[1]
}

// withNewPods returns the clusters with a new pod in each of the namespaces and in a new one.
func (a *allocator) withNewPods(namespaces []string, clusters ...clusterstate.Input) []clusterstate.Input {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: NewNamespace, Labels: map[string]string{corev1.LabelMetadataName: NewNamespace}}}
	pods := a.newPods(slices.Compact(append(slices.Clone(namespaces), NewNamespace)))
	for i := range clusters {
		clusters[i].Namespaces = append(slices.Clone(clusters[i].Namespaces), namespace)
		clusters[i].Pods = slices.Concat(clusters[i].Pods, pods)
	}
	return clusters
}

// IsNew reports whether a pod is one that may come, of AddNewPods or WithNewPods.
func IsNew(pod *corev1.Pod) bool { return pod.Name == newPod }

// WithAddresses returns the clusters with an address for each pod that has none, chosen as
// by AddNewPods.
func WithAddresses(before, after clusterstate.Input) (clusterstate.Input, clusterstate.Input) {
	a := newAllocator(before, after)
	ips := map[string][]corev1.PodIP{}
	before.Pods, after.Pods = a.addressed(before.Pods, ips), a.addressed(after.Pods, ips)
	return before, after
}

// addressed returns the pods with an address for each pod that has none. ips caches the
// addresses by "namespace/name".
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

// namespacesOf returns the sorted namespaces of a cluster.
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

// allocator finds unused addresses.
type allocator struct {
	// starts are, for each family of the pods, addresses after which to look for free ones. If
	// there is none after the first, the next start is used.
	starts [][]netip.Addr
	used   map[netip.Addr]bool
	blocks *bart.Lite
}

func newAllocator(inputs ...clusterstate.Input) *allocator {
	a := &allocator{used: map[netip.Addr]bool{}, blocks: &bart.Lite{}}
	byFamily := map[bool][]netip.Addr{} // by whether it is IPv4
	for _, in := range inputs {
		a.addBlocks(in)
		for addr := range nodeAddresses(in) {
			a.used[addr] = true
		}
		for _, pod := range in.Pods {
			for _, addr := range compile.Addresses(pod) {
				a.used[addr] = true
				if !pod.Spec.HostNetwork {
					byFamily[addr.Is4()] = append(byFamily[addr.Is4()], addr)
				}
			}
		}
	}
	for _, v4 := range []bool{true, false} {
		if addrs := byFamily[v4]; len(addrs) > 0 {
			slices.SortFunc(addrs, func(x, y netip.Addr) int { return y.Compare(x) }) // highest first
			a.starts = append(a.starts, slices.Compact(addrs))
		}
	}
	return a
}

// addBlocks adds the blocks of policies, also of those that select no pod yet.
func (a *allocator) addBlocks(in clusterstate.Input) {
	for _, g := range in.CIDRGroups {
		for _, p := range compile.NewCIDRGroup(g).Prefixes {
			a.blocks.Insert(p)
		}
	}
	for _, o := range in.Policies {
		p := compile.KindOf(o).Compile(o, in.Features, nil)
		for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
			for _, r := range p.Rules(d) {
				for i := range r.Peers {
					for _, block := range prefixesOf(&r.Peers[i]) {
						a.blocks.Insert(block)
					}
				}
			}
		}
	}
}

// addresses returns an unused address of each family of the pods, as far as there are any.
func (a *allocator) addresses() []corev1.PodIP {
	var ips []corev1.PodIP
	for i := range a.starts {
		for len(a.starts[i]) > 0 {
			if addr, ok := a.nextFree(a.starts[i][0]); ok {
				a.used[addr], a.starts[i][0] = true, addr
				ips = append(ips, corev1.PodIP{IP: addr.String()})
				break
			}
			a.starts[i] = a.starts[i][1:]
		}
	}
	return ips
}

// nextFree returns the next unused address after addr in the same blocks.
func (a *allocator) nextFree(addr netip.Addr) (netip.Addr, bool) {
	const maxTries = 1 << 16
	block := smallest(addr, a.blocks)
	for range maxTries {
		if addr = addr.Next(); !block.Contains(addr) {
			break
		}
		if !a.used[addr] && smallest(addr, a.blocks) == block {
			return addr, true
		}
	}
	return netip.Addr{}, false
}
