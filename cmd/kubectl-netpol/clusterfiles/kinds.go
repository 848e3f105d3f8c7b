package clusterfiles

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	networkingv1beta1 "k8s.io/api/networking/v1beta1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/exposure"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
	"sigs.k8s.io/kube-network-policies/pkg/base/spelling"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/manifestyaml"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

// kind is a kind of object that the package reads.
type kind struct {
	schema.GroupVersionKind
	namespaced bool
	policy     *compile.Kind // nil for kinds that are not policies
	// template is the path of a workload's pod template, with a trailing dot.
	template string
	new      func() compile.Object
}

var kinds = func() []kind {
	kinds := []kind{
		{GroupVersionKind: core("Namespace"), new: compile.KindNamespace.New},
		{GroupVersionKind: core("Node"), new: compile.KindNode.New},
		{GroupVersionKind: core("Pod"), namespaced: true, new: compile.KindPod.New},
		{GroupVersionKind: proposed.CIDRGroupVersion.WithKind(compile.KindCIDRGroup.Name), new: compile.KindCIDRGroup.New},
		{GroupVersionKind: core("Service"), namespaced: true, new: func() compile.Object { return new(corev1.Service) }},
		{GroupVersionKind: networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR"), new: newServiceCIDR},
		{GroupVersionKind: networkingv1beta1.SchemeGroupVersion.WithKind("ServiceCIDR"), new: newServiceCIDR},
		{GroupVersionKind: core("Endpoints"), namespaced: true, new: func() compile.Object { return new(Endpoints) }},
		{GroupVersionKind: discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), namespaced: true, new: func() compile.Object { return new(discoveryv1.EndpointSlice) }},
		workload(core(workloads.ReplicationController), "spec.template.", func() compile.Object { return new(corev1.ReplicationController) }),
		workload(apps(workloads.Deployment), "spec.template.", func() compile.Object { return new(appsv1.Deployment) }),
		workload(apps(workloads.StatefulSet), "spec.template.", func() compile.Object { return new(appsv1.StatefulSet) }),
		workload(apps(workloads.DaemonSet), "spec.template.", func() compile.Object { return new(appsv1.DaemonSet) }),
		workload(apps(workloads.ReplicaSet), "spec.template.", func() compile.Object { return new(appsv1.ReplicaSet) }),
		workload(batch(workloads.Job), "spec.template.", func() compile.Object { return new(batchv1.Job) }),
		workload(batch(workloads.CronJob), "spec.jobTemplate.spec.template.", func() compile.Object { return new(batchv1.CronJob) }),
	}
	for _, k := range exposure.Kinds {
		for _, gvk := range k.GroupVersionKinds() {
			kinds = append(kinds, kind{GroupVersionKind: gvk, namespaced: k.Namespaced, new: func() compile.Object { return new(unstructured.Unstructured) }})
		}
	}
	for _, k := range compile.Kinds {
		for _, r := range k.Resources() {
			kinds = append(kinds, kind{GroupVersionKind: r.GroupVersion().WithKind(k.Name), namespaced: k.Namespaced, policy: k, new: k.New})
		}
	}
	return kinds
}()

// newServiceCIDR returns one of v1: those of v1beta1 have the same fields.
func newServiceCIDR() compile.Object { return new(networkingv1.ServiceCIDR) }

func core(name string) schema.GroupVersionKind  { return corev1.SchemeGroupVersion.WithKind(name) }
func apps(name string) schema.GroupVersionKind  { return appsv1.SchemeGroupVersion.WithKind(name) }
func batch(name string) schema.GroupVersionKind { return batchv1.SchemeGroupVersion.WithKind(name) }

func workload(gvk schema.GroupVersionKind, template string, new func() compile.Object) kind {
	return kind{GroupVersionKind: gvk, namespaced: true, template: template, new: new}
}

// classify returns the kind of an object, or nil for a kind that is skipped. An error comes
// with the field that is wrong, and with whether the object was likely meant to be a policy.
func classify(h manifestyaml.Header) (k *kind, field string, policy bool, err error) {
	version, err := schema.ParseGroupVersion(h.APIVersion)
	if err != nil {
		return nil, "apiVersion", strings.Contains(strings.ToLower(h.Kind), "networkpolic"), fmt.Errorf("apiVersion: %w", err)
	}
	gvk := version.WithKind(h.Kind)
	if i := slices.IndexFunc(kinds, func(k kind) bool { return k.GroupVersionKind == gvk }); i >= 0 {
		return &kinds[i], "", false, nil
	}
	var read []string // versions of the kind
	for _, k := range kinds {
		if k.Group == gvk.Group && k.Kind == gvk.Kind || moved(&k, gvk) {
			read = append(read, strconv.Quote(k.GroupVersion().String()))
			policy = k.policy != nil
		}
	}
	if read != nil {
		return nil, "apiVersion", policy, fmt.Errorf("apiVersion: %s of %q is not read, only of %s: write it as %s", gvk.Kind, h.APIVersion, strings.Join(read, " or "), read[0])
	}
	meant := likeAPolicy(gvk)
	if meant == nil {
		meant = likeAnother(gvk)
	}
	if meant != nil {
		if meant.Kind == gvk.Kind {
			return nil, "apiVersion", meant.policy != nil, fmt.Errorf("apiVersion: %s of %q is not known; did you mean %q?", gvk.Kind, h.APIVersion, meant.GroupVersion())
		}
		return nil, "kind", meant.policy != nil, fmt.Errorf("kind: %q of %q is not known; did you mean %s of %q?", gvk.Kind, h.APIVersion, meant.Kind, meant.GroupVersion())
	}
	return nil, "", false, nil
}

// likeAnother returns the kind, none of a policy, that was likely meant by one that is not
// read: it has its name in a group of Kubernetes or in something near its own, or nearly its
// name in its own group. Other groups have Services, Nodes and Jobs of their own.
func likeAnother(gvk schema.GroupVersionKind) *kind {
	for i := range kinds {
		k := &kinds[i]
		named := spelling.Distance(strings.ToLower(k.Kind), strings.ToLower(gvk.Kind))
		switch {
		case k.policy != nil:
		case named == 0 && nearCore(gvk.Group), named <= min(2, len(k.Kind)/4) && gvk.GroupVersion() == k.GroupVersion():
			return k
		}
	}
	return nil
}

// nearCore reports whether a group is, or was meant to be, one of those that are named without
// a domain of their own.
func nearCore(group string) bool {
	return !strings.Contains(strings.TrimSuffix(group, ".k8s.io"), ".")
}

// clusterScoped reports whether a kind that is read has no namespace.
func clusterScoped(name string) bool {
	return slices.ContainsFunc(kinds, func(k kind) bool { return k.Kind == name && !k.namespaced })
}

// moved reports whether gvk names a kind in a group that API servers no longer serve.
func moved(k *kind, gvk schema.GroupVersionKind) bool {
	return gvk.Group == "extensions" && gvk.Kind == k.Kind
}

// known are the other kinds in the groups of policies.
var known = map[string][]string{
	"networking.k8s.io": {"IPAddress", "ClusterCIDR"},
}

// likeAPolicy returns the kind of policy that an unread kind was probably meant to be, or
// nil. It must be in a group of policies, or in or near a group of Kubernetes, and have a
// similar name. Unrelated groups have policies of their own.
func likeAPolicy(gvk schema.GroupVersionKind) *kind {
	var nearest *kind
	least := 1 << 30
	ofGroup := false // in a group of policies
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

// ofKubernetes reports whether a group is one of Kubernetes itself, or spelt like one that
// has policies.
func ofKubernetes(group string) bool {
	if !strings.Contains(group, ".") || strings.HasSuffix(group, "k8s.io") {
		return true
	}
	return slices.ContainsFunc(compile.Kinds, func(k *compile.Kind) bool {
		return strings.HasPrefix(k.Resource.Group, group) || spelling.Distance(group, k.Resource.Group) <= 2
	})
}
