package main

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/workloads"
)

// applied returns a cluster with changes applied to it by name, as kubectl apply would:
// policies take the place of those of their names, namespaces and nodes get labels, and
// pods the labels and ports that their manifests or templates have. Nothing is deleted.
// Pods that the cluster does not have are returned apart: there is nothing to compare
// them with.
func applied(cluster, changes clusterstate.Input) (after clusterstate.Input, added []string) {
	after = cluster
	after.Policies = append(withoutNamed(cluster.Policies, changes.Policies), changes.Policies...)
	after.Namespaces = labelled(cluster.Namespaces, changes.Namespaces)
	after.Nodes = labelled(cluster.Nodes, changes.Nodes)
	after.Pods, added = appliedPods(cluster.Pods, changes.Pods)
	return after, added
}

// replaced returns a cluster whose policies are those of changes alone, in a namespace if
// one is given. If changes have pods, they are the whole cluster.
func replaced(cluster, changes clusterstate.Input, namespace string) clusterstate.Input {
	kept := slices.DeleteFunc(slices.Clone(cluster.Policies), func(p compile.Object) bool {
		return namespace == "" || p.GetNamespace() == namespace
	})
	after := changes
	if len(changes.Pods) == 0 {
		after = cluster
	}
	after.Policies = append(withoutNamed(kept, changes.Policies), changes.Policies...)
	return after
}

// withoutNamed returns policies without those that have the name of another one.
func withoutNamed(policies, others []compile.Object) []compile.Object {
	type key struct {
		kind            *compile.Kind
		namespace, name string
	}
	keyOf := func(p compile.Object) key { return key{compile.KindOf(p), p.GetNamespace(), p.GetName()} }
	named := map[key]bool{}
	for _, p := range others {
		named[keyOf(p)] = true
	}
	return slices.DeleteFunc(slices.Clone(policies), func(p compile.Object) bool { return named[keyOf(p)] })
}

// clusterScoped is a Namespace or a Node.
type clusterScoped[T any] interface {
	*T
	metav1.Object
}

// labelled returns objects with the labels that changes add to those of their names, and
// with the changes that are new.
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

// appliedPods returns pods with the labels and ports of changes: of those of their names,
// or of the pods that stand for their workloads. added are the names of the other changes.
func appliedPods(pods, changes []*corev1.Pod) (after []*corev1.Pod, added []string) {
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
	for _, pod := range changes {
		if !used[pod] {
			added = append(added, pod.Namespace+"/"+pod.Name)
		}
	}
	slices.Sort(added)
	return after, added
}

// podLabels returns the labels of a pod once its manifest or template is that of change.
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
