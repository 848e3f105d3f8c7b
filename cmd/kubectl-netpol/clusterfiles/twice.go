package clusterfiles

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
)

// twice compares an object with another one of its name that was read before. Trees have
// several variants of an installation.
func (r *reader) twice(m manifest, o, other object) error {
	key := o.key()
	var err error
	switch {
	case other.kind != o.kind:
		err = m.fault("apiVersion", fmt.Errorf("%s of version %s is already at %s as %s, and is the same object: remove one of them", key, o.kind.Version, other.source.at(""), other.kind.Version))
	case alike(other, o):
		return nil
	default:
		err = m.fault("", fmt.Errorf("%s is already at %s, and differs", key, other.source.at("")))
	}
	if o.kind.policy != nil {
		err = r.asRefused(m, o.kind.Kind, true, err)
	}
	return tolerate(err, "the first one counts")
}

// isPatch reports whether a workload has nothing that tells its pods. API servers refuse it, and
// trees have such files beside kustomizations, also beside those that no other one refers to.
func isPatch(o object) bool {
	pod, ok := workloads.PodOf(o.Object)
	_, selects := workloads.SelectorOf(o.Object)
	return ok && !selects && o.kind.Group == appsv1.GroupName && len(pod.Labels) == 0
}

// alike reports whether policies cannot tell two objects of one name apart. What the containers of
// a pod run does not matter: variants of an installation differ in that.
func alike(a, b object) bool {
	pod, ok := podSeen(a)
	other, both := podSeen(b)
	if !ok || !both {
		return apiequality.Semantic.DeepEqual(a.Object, b.Object)
	}
	selector, _ := workloads.SelectorOf(a.Object)
	otherSelector, _ := workloads.SelectorOf(b.Object)
	return apiequality.Semantic.DeepEqual(pod, other) && apiequality.Semantic.DeepEqual(selector, otherSelector)
}

// podSeen returns what policies see of a workload's pod.
func podSeen(o object) (*corev1.Pod, bool) {
	pod, ok := workloads.PodOf(o.Object)
	if !ok {
		return nil, false
	}
	pod = pod.DeepCopy()
	pod.Spec.Volumes = nil
	for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i, c := range containers {
			containers[i] = corev1.Container{Name: c.Name, Ports: c.Ports, RestartPolicy: c.RestartPolicy}
		}
	}
	return pod, true
}
