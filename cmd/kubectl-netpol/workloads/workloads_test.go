package workloads

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestWorkloadOfAPod(t *testing.T) {
	yes, no := true, false
	hash := map[string]string{"pod-template-hash": "5d8f9c7b6"}
	owner := func(kind, name string, controller *bool) []metav1.OwnerReference {
		return []metav1.OwnerReference{{Kind: kind, Name: name, Controller: controller}}
	}
	for name, tc := range map[string]struct {
		labels map[string]string
		owners []metav1.OwnerReference
		want   Ref
	}{
		"no owner":                        {hash, nil, Ref{Pod, "shop", "p"}},
		"an owner that does not control":  {hash, owner(ReplicaSet, "web-5d8f9c7b6", &no), Ref{Pod, "shop", "p"}},
		"an owner that may not control":   {nil, owner("Node", "n1", nil), Ref{Pod, "shop", "p"}},
		"a ReplicaSet of a Deployment":    {hash, owner(ReplicaSet, "web-5d8f9c7b6", &yes), Ref{Deployment, "shop", "web"}},
		"a ReplicaSet of its own":         {nil, owner(ReplicaSet, "web-5d8f9c7b6", &yes), Ref{ReplicaSet, "shop", "web-5d8f9c7b6"}},
		"a ReplicaSet with another hash":  {hash, owner(ReplicaSet, "web-1", &yes), Ref{ReplicaSet, "shop", "web-1"}},
		"a ReplicaSet with an empty hash": {map[string]string{"pod-template-hash": ""}, owner(ReplicaSet, "web-", &yes), Ref{ReplicaSet, "shop", "web-"}},
		"a ReplicaSet without a name":     {hash, owner(ReplicaSet, "-5d8f9c7b6", &yes), Ref{ReplicaSet, "shop", "-5d8f9c7b6"}},
		"a Job of a CronJob":              {nil, owner(Job, "backup-29384751", &yes), Ref{CronJob, "shop", "backup"}},
		"a Job of an old CronJob":         {nil, owner(Job, "backup-1606003200", &yes), Ref{CronJob, "shop", "backup"}},
		"a Job of its own":                {nil, owner(Job, "migrate-2", &yes), Ref{Job, "shop", "migrate-2"}},
		"a Job with letters":              {nil, owner(Job, "migrate-2938475a", &yes), Ref{Job, "shop", "migrate-2938475a"}},
		"a Job of digits":                 {nil, owner(Job, "29384751", &yes), Ref{Job, "shop", "29384751"}},
		"a StatefulSet":                   {nil, owner(StatefulSet, "db", &yes), Ref{StatefulSet, "shop", "db"}},
		"a DaemonSet":                     {nil, owner(DaemonSet, "log", &yes), Ref{DaemonSet, "shop", "log"}},
		"another kind":                    {nil, owner("Rollout", "web", &yes), Ref{"Rollout", "shop", "web"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p", Labels: tc.labels, OwnerReferences: tc.owners}}
			if got := Of(p); got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

// The pod of each workload has the workload's name and its template's metadata, and belongs
// to it.
func TestPodOfAWorkload(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: "shop", Name: "web", Labels: map[string]string{"of": "the workload"}}
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}, Name: "ignored", Namespace: "ignored"},
		Spec: corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{
			Name: "c", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
		}}},
	}
	jobSpec := batchv1.JobSpec{Template: template}
	for kind, o := range map[string]any{
		Deployment:            &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Template: template}},
		StatefulSet:           &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Template: template}},
		DaemonSet:             &appsv1.DaemonSet{ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Template: template}},
		ReplicaSet:            &appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Template: template}},
		ReplicationController: &corev1.ReplicationController{ObjectMeta: meta, Spec: corev1.ReplicationControllerSpec{Template: &template}},
		Job:                   &batchv1.Job{ObjectMeta: meta, Spec: jobSpec},
		CronJob:               &batchv1.CronJob{ObjectMeta: meta, Spec: batchv1.CronJobSpec{JobTemplate: batchv1.JobTemplateSpec{Spec: jobSpec}}},
	} {
		t.Run(kind, func(t *testing.T) {
			p, ok := PodOf(o)
			if want := (Ref{kind, "shop", "web"}); !ok || Of(p) != want {
				t.Fatalf("the pod belongs to %+v, want %+v", Of(p), want)
			}
			if p.Namespace != "shop" || p.Name != "web" || p.Labels["app"] != "web" || p.Labels["of"] != "" {
				t.Errorf("got %+v", p.ObjectMeta)
			}
			if got := p.Labels["job-name"]; (got == "web") != (kind == Job) {
				t.Errorf("label job-name is %q", got)
			}
			if !p.Spec.HostNetwork || p.Spec.Containers[0].Ports[0].Name != "http" {
				t.Errorf("got %+v", p.Spec)
			}
			if _, changed := template.Labels["job-name"]; changed {
				t.Error("the template has changed")
			}
		})
	}
}

func TestPodOfOtherObjects(t *testing.T) {
	pod := &corev1.Pod{}
	if p, ok := PodOf(pod); !ok || p != pod {
		t.Error("PodOf(Pod) returns another pod")
	}
	for _, o := range []any{&corev1.Service{}, &corev1.ReplicationController{}, nil} {
		if _, ok := PodOf(o); ok {
			t.Errorf("%T makes a pod", o)
		}
	}
}

func TestRefsAreOrdered(t *testing.T) {
	ordered := []Ref{{"Pod", "a", "b"}, {"Deployment", "a", "c"}, {"Pod", "a", "c"}, {"Deployment", "b", "a"}}
	for i, a := range ordered {
		for j, b := range ordered {
			if got := a.Compare(b); (got < 0) != (i < j) || (got == 0) != (i == j) {
				t.Errorf("%v %v: %d", a, b, got)
			}
		}
	}
}

func TestSelectorOfAWorkload(t *testing.T) {
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	for name, tc := range map[string]struct {
		object any
		want   bool
	}{
		"Deployment":            {&appsv1.Deployment{Spec: appsv1.DeploymentSpec{Selector: selector}}, true},
		"StatefulSet":           {&appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{Selector: selector}}, true},
		"DaemonSet":             {&appsv1.DaemonSet{Spec: appsv1.DaemonSetSpec{Selector: selector}}, true},
		"ReplicaSet":            {&appsv1.ReplicaSet{Spec: appsv1.ReplicaSetSpec{Selector: selector}}, true},
		"ReplicationController": {&corev1.ReplicationController{Spec: corev1.ReplicationControllerSpec{Selector: selector.MatchLabels}}, true},
		"Job":                   {&batchv1.Job{Spec: batchv1.JobSpec{Selector: selector}}, false},
		"CronJob":               {&batchv1.CronJob{}, false},
		"without one":           {&appsv1.Deployment{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := SelectorOf(tc.object)
			if ok != tc.want || ok && got.MatchLabels["app"] != "web" {
				t.Errorf("got %v, %v", got, ok)
			}
		})
	}
}
