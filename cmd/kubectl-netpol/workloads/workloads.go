// Package workloads finds the workload of a pod, and the pod that a workload creates. It
// knows the built-in kinds and their templates, but neither policies nor where objects come
// from.
package workloads

import (
	"cmp"
	"maps"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The kinds of workload.
const (
	Pod                   = "Pod" // without a controller
	Deployment            = "Deployment"
	StatefulSet           = "StatefulSet"
	DaemonSet             = "DaemonSet"
	ReplicaSet            = "ReplicaSet"
	ReplicationController = "ReplicationController"
	Job                   = "Job"
	CronJob               = "CronJob"
)

// Ref names a workload. Workloads of different kinds may share a name.
type Ref struct {
	Kind, Namespace, Name string
}

// String returns "namespace/name".
func (r Ref) String() string { return r.Namespace + "/" + r.Name }

// Compare orders by namespace, name and kind.
func (r Ref) Compare(o Ref) int {
	return cmp.Or(cmp.Compare(r.Namespace, o.Namespace), cmp.Compare(r.Name, o.Name), cmp.Compare(r.Kind, o.Kind))
}

// Of returns the workload of a pod: its controller, or the Deployment or CronJob that made
// the controller, as far as names and labels tell. A pod without a controller is its own
// workload.
func Of(p *corev1.Pod) Ref {
	owner := metav1.GetControllerOfNoCopy(p)
	if owner == nil {
		return Ref{Pod, p.Namespace, p.Name}
	}
	ref := Ref{owner.Kind, p.Namespace, owner.Name}
	switch owner.Kind {
	case ReplicaSet:
		// A Deployment names its ReplicaSets NAME-HASH and labels them with the hash.
		hash := p.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
		if name, ok := strings.CutSuffix(owner.Name, "-"+hash); ok && hash != "" && name != "" {
			ref.Kind, ref.Name = Deployment, name
		}
	case Job:
		if name, ok := cutTime(owner.Name); ok {
			ref.Kind, ref.Name = CronJob, name
		}
	}
	return ref
}

// cutTime returns the name of the CronJob that made a Job of that name. A CronJob's
// controller appends the scheduled time in minutes since 1970, which has eight digits from
// 1989 to 2160. Before Kubernetes 1.21 it was in seconds, ten digits from 2001 to 2286.
func cutTime(job string) (name string, ok bool) {
	i := strings.LastIndexByte(job, '-')
	if i <= 0 {
		return "", false
	}
	digits := job[i+1:]
	if len(digits) != 8 && len(digits) != 10 || strings.Trim(digits, "0123456789") != "" {
		return "", false
	}
	return job[:i], true
}

// SelectorOf returns the pod selector of a workload. ok is false for objects without one,
// and for Jobs and CronJobs, whose selector is generated for each Job.
func SelectorOf(o any) (selector *metav1.LabelSelector, ok bool) {
	switch o := o.(type) {
	case *appsv1.Deployment:
		selector = o.Spec.Selector
	case *appsv1.StatefulSet:
		selector = o.Spec.Selector
	case *appsv1.DaemonSet:
		selector = o.Spec.Selector
	case *appsv1.ReplicaSet:
		selector = o.Spec.Selector
	case *corev1.ReplicationController:
		selector = &metav1.LabelSelector{MatchLabels: o.Spec.Selector}
	}
	return selector, selector != nil
}

// Labels are those of a workload itself and those by which it knows its pods.
type Labels struct {
	Ref
	Own, Pods map[string]string
}

// LabelsOf returns the labels of a workload that creates pod.
func LabelsOf(o metav1.Object, pod *corev1.Pod) Labels {
	l := Labels{Of(pod), o.GetLabels(), pod.Labels}
	if s, ok := SelectorOf(o); ok && len(s.MatchLabels) > 0 {
		l.Pods = s.MatchLabels
	}
	return l
}

// PodOf returns the pod that a workload creates: with the name of the workload, the labels,
// annotations and spec of its template, the workload as controller, and no status. A Pod is
// returned unchanged. ok is false for other objects. The spec is shared with o.
func PodOf(o any) (pod *corev1.Pod, ok bool) {
	switch o := o.(type) {
	case *corev1.Pod:
		return o, true
	case *appsv1.Deployment:
		return assumed(Deployment, appsv1.SchemeGroupVersion.String(), &o.ObjectMeta, &o.Spec.Template), true
	case *appsv1.StatefulSet:
		return assumed(StatefulSet, appsv1.SchemeGroupVersion.String(), &o.ObjectMeta, &o.Spec.Template), true
	case *appsv1.DaemonSet:
		return assumed(DaemonSet, appsv1.SchemeGroupVersion.String(), &o.ObjectMeta, &o.Spec.Template), true
	case *appsv1.ReplicaSet:
		return assumed(ReplicaSet, appsv1.SchemeGroupVersion.String(), &o.ObjectMeta, &o.Spec.Template), true
	case *corev1.ReplicationController:
		if o.Spec.Template == nil {
			return nil, false
		}
		return assumed(ReplicationController, corev1.SchemeGroupVersion.String(), &o.ObjectMeta, o.Spec.Template), true
	case *batchv1.Job:
		return assumed(Job, batchv1.SchemeGroupVersion.String(), &o.ObjectMeta, &o.Spec.Template), true
	case *batchv1.CronJob:
		return assumed(CronJob, batchv1.SchemeGroupVersion.String(), &o.ObjectMeta, &o.Spec.JobTemplate.Spec.Template), true
	}
	return nil, false
}

func assumed(kind, version string, owner *metav1.ObjectMeta, template *corev1.PodTemplateSpec) *corev1.Pod {
	controller := true
	labels := maps.Clone(template.Labels)
	if kind == Job { // added by the Job controller; the same for all pods of the Job
		if labels == nil {
			labels = map[string]string{}
		}
		labels[batchv1.JobNameLabel] = owner.Name
		labels["job-name"] = owner.Name
	}
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: corev1.SchemeGroupVersion.String(), Kind: Pod},
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   owner.Namespace,
			Name:        owner.Name,
			UID:         types.UID(kind + "/" + owner.Namespace + "/" + owner.Name),
			Labels:      labels,
			Annotations: template.Annotations,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: version, Kind: kind, Name: owner.Name, UID: owner.UID, Controller: &controller,
			}},
		},
		Spec: template.Spec,
	}
}
