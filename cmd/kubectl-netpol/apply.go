package main

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/clusterfiles"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// applied returns the cluster after changes were applied to it by name, as by kubectl
// apply: policies and CIDRGroups replace those with the same names, namespaces and nodes get
// labels, and pods get the labels and ports of their manifests or templates. Nothing is deleted.
// assumed are the pods of changes whose placeholders are not needed if the cluster has pods: reachability
// finds addresses beside theirs.
func applied(cluster, changes clusterstate.Input, assumed []string) clusterstate.Input {
	if slices.ContainsFunc(cluster.Pods, func(p *corev1.Pod) bool { return !p.Spec.HostNetwork && len(compile.Addresses(p)) > 0 }) {
		changes.Pods = withoutAddresses(changes.Pods, assumed)
	}
	after := cluster
	after.Policies = replacing(cluster.Policies, changes.Policies)
	after.CIDRGroups = replacing(cluster.CIDRGroups, changes.CIDRGroups)
	after.Namespaces = labelled(cluster.Namespaces, changes.Namespaces)
	after.Nodes = labelled(cluster.Nodes, changes.Nodes)
	after.Pods = appliedPods(cluster.Pods, changes.Pods)
	return after
}

// toBePlaced returns the pods of changes that get an address beside those of a live cluster's pods: all
// without one, unless ranges are stated.
func (o *options) toBePlaced(changes *clusterfiles.Objects, live bool) []string {
	if !live || len(o.podCIDRs) > 0 {
		return nil
	}
	return changes.Unaddressed
}

// withoutAddresses returns pods, those of names without addresses.
func withoutAddresses(pods []*corev1.Pod, names []string) []*corev1.Pod {
	all := slices.Clone(pods)
	for i, pod := range all {
		if slices.Contains(names, pod.Namespace+"/"+pod.Name) {
			waiting := *pod
			waiting.Status.PodIP, waiting.Status.PodIPs = "", nil
			all[i] = &waiting
		}
	}
	return all
}

// sharedPods returns the pods of two clusters that both have, and the names of the others.
func sharedPods(a, b []*corev1.Pod) (sharedA, sharedB []*corev1.Pod, others []string) {
	name := func(p *corev1.Pod) string { return p.Namespace + "/" + p.Name }
	in := func(pods []*corev1.Pod) map[string]bool {
		names := map[string]bool{}
		for _, p := range pods {
			names[name(p)] = true
		}
		return names
	}
	inA, inB := in(a), in(b)
	without := func(pods []*corev1.Pod, names map[string]bool) []*corev1.Pod {
		return slices.DeleteFunc(slices.Clone(pods), func(p *corev1.Pod) bool {
			if !names[name(p)] {
				others = append(others, name(p))
			}
			return !names[name(p)]
		})
	}
	return without(a, inB), without(b, inA), others
}

// replaced returns the cluster with the policies of changes instead of its own, in one
// namespace if it is given. If changes contain pods, they are the whole cluster.
func replaced(cluster, changes clusterstate.Input, namespace string) clusterstate.Input {
	kept := slices.DeleteFunc(slices.Clone(cluster.Policies), func(p compile.Object) bool {
		return namespace == "" || p.GetNamespace() == namespace
	})
	after := changes
	if len(changes.Pods) == 0 {
		after = cluster
		after.CIDRGroups = replacing(cluster.CIDRGroups, changes.CIDRGroups)
	}
	after.Pods = renamed(after.Pods, cluster.Pods)
	after.Policies = replacing(kept, changes.Policies)
	return after
}

// renamed returns pods with the names of others that only these have, of the same workload:
// new replicas have new names.
func renamed(pods, others []*corev1.Pod) []*corev1.Pod {
	_, _, unshared := sharedPods(others, pods)
	only := map[string]bool{}
	for _, name := range unshared {
		only[name] = true
	}
	gone := map[workloads.Ref][]string{}
	for _, p := range others {
		if w := workloads.Of(p); only[p.Namespace+"/"+p.Name] {
			gone[w] = append(gone[w], p.Name)
		}
	}
	all := slices.Clone(pods)
	for i, p := range all {
		if w := workloads.Of(p); only[p.Namespace+"/"+p.Name] && len(gone[w]) > 0 {
			replica := *p
			replica.Name, gone[w] = gone[w][0], gone[w][1:]
			all[i] = &replica
		}
	}
	return all
}

// replacing returns objects with changes in the place of those of the same kind and name.
func replacing[O metav1.Object](objects, changes []O) []O {
	key := func(o O) [4]string {
		key := [4]string{fmt.Sprintf("%T", o), "", o.GetNamespace(), o.GetName()}
		if u, ok := any(o).(*unstructured.Unstructured); ok {
			key[1] = u.GetKind()
		}
		return key
	}
	replaced := map[[4]string]bool{}
	for _, o := range changes {
		replaced[key(o)] = true
	}
	kept := slices.DeleteFunc(slices.Clone(objects), func(o O) bool { return replaced[key(o)] })
	return append(kept, changes...)
}

// clusterScoped is a Namespace or a Node.
type clusterScoped[T any] interface {
	*T
	metav1.Object
}

// labelled returns the objects with the labels of changes added by name, and the changes
// that have no object yet.
func labelled[T any, O clusterScoped[T]](objects, changes []O) []O {
	all := slices.Clone(objects)
	for _, change := range changes {
		i := slices.IndexFunc(all, func(o O) bool { return o.GetName() == change.GetName() })
		if i < 0 {
			all = append(all, change)
			continue
		}
		changed := *all[i]
		all[i] = &changed
		labels := maps.Clone(all[i].GetLabels())
		if labels == nil {
			labels = map[string]string{}
		}
		maps.Copy(labels, change.GetLabels())
		all[i].SetLabels(labels)
	}
	return all
}

// appliedPods returns the pods with the labels and ports of changes. A change applies to
// the pod of its name or, if it stands for a workload, to the workload's pods. The others
// are new pods.
func appliedPods(pods, changes []*corev1.Pod) []*corev1.Pod {
	var after []*corev1.Pod
	byName, byWorkload := map[string]*corev1.Pod{}, map[workloads.Ref]*corev1.Pod{}
	for _, pod := range changes {
		byName[pod.Namespace+"/"+pod.Name] = pod
		byWorkload[workloads.Of(pod)] = pod
	}
	used := map[*corev1.Pod]bool{}
	for _, pod := range pods {
		change := byName[pod.Namespace+"/"+pod.Name]
		if change == nil {
			change = byWorkload[workloads.Of(pod)]
		}
		if change == nil {
			after = append(after, pod)
			continue
		}
		used[change] = true
		changed := *pod
		changed.Labels = podLabels(pod, change)
		changed.Spec.Containers, changed.Spec.InitContainers = change.Spec.Containers, change.Spec.InitContainers
		after = append(after, &changed)
	}
	return append(after, slices.DeleteFunc(slices.Clone(changes), func(p *corev1.Pod) bool { return used[p] })...)
}

// podLabels returns the labels of a pod whose manifest or template becomes that of change.
func podLabels(pod, change *corev1.Pod) map[string]string {
	labels := map[string]string{}
	for _, key := range workloads.ControllerLabels {
		if value, ok := pod.Labels[key]; ok {
			labels[key] = value
		}
	}
	maps.Copy(labels, change.Labels)
	return labels
}
