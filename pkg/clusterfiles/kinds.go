package clusterfiles

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/manifestyaml"
	"sigs.k8s.io/kube-network-policies/pkg/spelling"
	"sigs.k8s.io/kube-network-policies/pkg/workloads"
)

// kind is a kind of object that is read.
type kind struct {
	schema.GroupVersionKind
	namespaced bool
	policy     *compile.Kind // nil for kinds that are no policies
	// template is the path of the template of pods, with a dot behind it, for workloads.
	template string
	new      func() compile.Object
}

var kinds = func() []kind {
	kinds := []kind{
		{GroupVersionKind: core("Namespace"), new: compile.KindNamespace.New},
		{GroupVersionKind: core("Node"), new: compile.KindNode.New},
		{GroupVersionKind: core("Pod"), namespaced: true, new: compile.KindPod.New},
		{GroupVersionKind: core("Service"), namespaced: true, new: func() compile.Object { return new(corev1.Service) }},
		workload(core(workloads.ReplicationController), "spec.template.", func() compile.Object { return new(corev1.ReplicationController) }),
		workload(apps(workloads.Deployment), "spec.template.", func() compile.Object { return new(appsv1.Deployment) }),
		workload(apps(workloads.StatefulSet), "spec.template.", func() compile.Object { return new(appsv1.StatefulSet) }),
		workload(apps(workloads.DaemonSet), "spec.template.", func() compile.Object { return new(appsv1.DaemonSet) }),
		workload(apps(workloads.ReplicaSet), "spec.template.", func() compile.Object { return new(appsv1.ReplicaSet) }),
		workload(batch(workloads.Job), "spec.template.", func() compile.Object { return new(batchv1.Job) }),
		workload(batch(workloads.CronJob), "spec.jobTemplate.spec.template.", func() compile.Object { return new(batchv1.CronJob) }),
	}
	for _, k := range compile.Kinds {
		gvk := k.Resource.GroupVersion().WithKind(k.Name)
		kinds = append(kinds, kind{GroupVersionKind: gvk, namespaced: k.Namespaced, policy: k, new: k.New})
	}
	return kinds
}()

func core(name string) schema.GroupVersionKind  { return corev1.SchemeGroupVersion.WithKind(name) }
func apps(name string) schema.GroupVersionKind  { return appsv1.SchemeGroupVersion.WithKind(name) }
func batch(name string) schema.GroupVersionKind { return batchv1.SchemeGroupVersion.WithKind(name) }

func workload(gvk schema.GroupVersionKind, template string, new func() compile.Object) kind {
	return kind{GroupVersionKind: gvk, namespaced: true, template: template, new: new}
}

// classify returns the kind of an object that is to be read, and nil for one that is to be
// passed over. An error comes with the field that is wrong.
func classify(h manifestyaml.Header) (k *kind, field string, err error) {
	version, err := schema.ParseGroupVersion(h.APIVersion)
	if err != nil {
		return nil, "apiVersion", fmt.Errorf("apiVersion: %w", err)
	}
	gvk := version.WithKind(h.Kind)
	for i := range kinds {
		k := &kinds[i]
		switch {
		case k.GroupVersionKind == gvk:
			return k, "", nil
		case k.Group == gvk.Group && k.Kind == gvk.Kind, moved(k, gvk):
			return nil, "apiVersion", fmt.Errorf("apiVersion: %s of %q is not read, only of %q", gvk.Kind, h.APIVersion, k.GroupVersion())
		}
	}
	if meant := likeAPolicy(gvk); meant != nil {
		if meant.Kind == gvk.Kind {
			return nil, "apiVersion", fmt.Errorf("apiVersion: %s of %q is not known; did you mean %q?", gvk.Kind, h.APIVersion, meant.GroupVersion())
		}
		return nil, "kind", fmt.Errorf("kind: %q of %q is not known; did you mean %s of %q?", gvk.Kind, h.APIVersion, meant.Kind, meant.GroupVersion())
	}
	return nil, "", nil
}

// moved reports whether API servers have served a kind in a group that is gone.
func moved(k *kind, gvk schema.GroupVersionKind) bool {
	return gvk.Group == "extensions" && gvk.Kind == k.Kind
}

// known are the kinds of the policies' groups that are no policies.
var known = map[string][]string{
	"networking.k8s.io": {"Ingress", "IngressClass", "IPAddress", "ServiceCIDR", "ClusterCIDR"},
}

// likeAPolicy returns the kind of policy that was likely meant by a kind that is not read, nil
// for none: it is of a group of policies, or of a group of Kubernetes or something near it,
// and named much like a policy. Other groups have their own kinds of policy.
func likeAPolicy(gvk schema.GroupVersionKind) *kind {
	var nearest *kind
	least := 1 << 30
	ofGroup := false // of policies
	for i := range kinds {
		k := &kinds[i]
		if k.policy == nil {
			continue
		}
		ofGroup = ofGroup || k.Group == gvk.Group
		d := 2*spelling.Distance(strings.ToLower(gvk.Kind), strings.ToLower(k.Kind)) + min(1, spelling.Distance(gvk.Group, k.Group))
		if d < least {
			nearest, least = k, d
		}
	}
	named := least <= 2*2+1 || strings.Contains(strings.ToLower(gvk.Kind), "networkpolic")
	switch {
	case slices.Contains(known[gvk.Group], strings.TrimSuffix(gvk.Kind, "List")):
		return nil
	case ofGroup, named && ofKubernetes(gvk.Group):
		return nearest
	}
	return nil
}

// ofKubernetes reports whether a group is one of Kubernetes itself, or near one that has policies.
func ofKubernetes(group string) bool {
	if !strings.Contains(group, ".") || strings.HasSuffix(group, "k8s.io") {
		return true
	}
	return slices.ContainsFunc(compile.Kinds, func(k *compile.Kind) bool {
		return strings.HasPrefix(k.Resource.Group, group) || spelling.Distance(group, k.Resource.Group) <= 2
	})
}
