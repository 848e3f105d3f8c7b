package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/clusterfiles"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/exposure"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/served"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

// reader reads as much of a cluster as the user may. What it may not list in all
// namespaces, it lists in some. Each gap is a limit of every answer.
type reader struct {
	client     kubernetes.Interface
	policies   dynamic.Interface
	kinds      []*compile.Kind // enabled by flags
	namespaces []string        // where to list if listing everywhere is forbidden
	templates  bool            // read workloads to add pods for those without any

	in       clusterstate.Input
	services services
	exposing []*unstructured.Unstructured // of exposure.Kinds
	// exposingLimit says which of them could not be read.
	exposingLimit string
	// selectors are the pod selectors of the workloads that were read, and workloads their labels.
	selectors map[workloads.Ref]*metav1.LabelSelector
	workloads []workloads.Labels
	// limits are sentences that say what could not be read and what that means.
	limits []string
}

// read reads everything. It fails only if the policies of no namespace can be read: without
// them no answer is useful.
func (r *reader) read(ctx context.Context) error {
	steps := []func(context.Context) error{r.readPods, r.readPolicies, r.readCIDRGroups, r.readNamespaces, r.readNodes, r.readServices, r.readServiceCIDRs, r.readEndpoints, r.readExposing}
	if r.templates {
		steps = append(steps, r.readWorkloads)
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) limit(format string, args ...any) {
	r.limits = append(r.limits, fmt.Sprintf(format, args...))
}

// permitted lists objects in all namespaces or, if that is forbidden, in those of the
// reader. lacking are the objects that it could not list, "" if there are none.
func permitted[T any](r *reader, what string, list func(namespace string) ([]T, error)) (items []T, lacking string, err error) {
	items, err = list(metav1.NamespaceAll)
	if !apierrors.IsForbidden(err) {
		return items, "", listError(what, err)
	}
	var allowed []string
	for _, namespace := range r.namespaces {
		some, err := list(namespace)
		switch {
		case apierrors.IsForbidden(err):
			continue
		case err != nil:
			return nil, "", listError(what, err)
		}
		items, allowed = append(items, some...), append(allowed, namespace)
	}
	if len(allowed) == 0 {
		return items, what, nil
	}
	return items, fmt.Sprintf("%s of other namespaces than %s", what, strings.Join(allowed, " and ")), nil
}

// listError returns the error of listing objects.
func listError(what string, err error) error {
	if err != nil {
		err = fmt.Errorf("list %s: %w", strings.ToLower(what), err)
	}
	return err
}

func (r *reader) readPods(ctx context.Context) error {
	pods, lacking, err := permitted(r, "Pods", func(namespace string) ([]*corev1.Pod, error) {
		return listed[*corev1.Pod](r.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{}))
	})
	if lacking != "" {
		r.limit("%s could not be read: their addresses are taken for addresses outside of the cluster", lacking)
	}
	r.in.Pods = pods
	return err
}

// readPolicies reads the policies of the enabled kinds. A cluster without an optional kind
// has none.
func (r *reader) readPolicies(ctx context.Context) error {
	for _, k := range compile.Kinds {
		if !k.Enabled(r.kinds) {
			continue
		}
		read := r.readKind
		if k.Namespaced {
			read = r.readNamespaced
		}
		if err := read(ctx, k); err != nil {
			return err
		}
	}
	return nil
}

// readNamespaced reads the policies of a namespaced kind.
func (r *reader) readNamespaced(ctx context.Context, k *compile.Kind) error {
	var forbidden error
	policies, lacking, err := permitted(r, plural(k), func(namespace string) ([]compile.Object, error) {
		policies, err := r.list(ctx, k, k.Resource, namespace)
		if apierrors.IsForbidden(err) {
			forbidden = err
		}
		return policies, err
	})
	switch {
	case err != nil:
		return err
	case lacking == plural(k):
		return fmt.Errorf("%w (a namespace that may be read can be named with -n)", listError(plural(k), forbidden))
	case lacking != "":
		r.limit("%s could not be read: what is allowed here may be denied at an end that is there", lacking)
	}
	r.in.Policies = append(r.in.Policies, policies...)
	return nil
}

// readCIDRGroups reads the groups that policies may refer to. Without them, such policies fail closed.
func (r *reader) readCIDRGroups(ctx context.Context) error {
	if !compile.ReadsCIDRGroups(r.kinds, r.in.Features) {
		return nil
	}
	groups, err := r.listServed(ctx, compile.KindCIDRGroup)
	switch {
	case apierrors.IsForbidden(err):
		r.limit("CIDRGroups could not be read: rules that refer to them deny more here, and accept less, than in the cluster")
		return nil
	case err != nil:
		return listError("CIDRGroups", err)
	}
	for _, g := range groups {
		r.in.CIDRGroups = append(r.in.CIDRGroups, g.(*proposed.CIDRGroup))
	}
	return nil
}

// listServed lists the objects of a cluster-scoped kind, none if it is not served. Listing does not
// show that: without the right to list, the answer is 403 even for a resource that does not exist.
func (r *reader) listServed(ctx context.Context, k *compile.Kind) ([]compile.Object, error) {
	resource, found, err := served.First(ctx, r.client.Discovery().RESTClient(), k.Resources())
	if err != nil || !found {
		return nil, err
	}
	return r.list(ctx, k, resource, metav1.NamespaceAll)
}

// readKind reads the policies of a cluster-scoped kind.
func (r *reader) readKind(ctx context.Context, k *compile.Kind) error {
	policies, err := r.listServed(ctx, k)
	if apierrors.IsForbidden(err) {
		r.limit("%s could not be read: %s", plural(k), withoutKind(k))
		return nil
	}
	r.in.Policies = append(r.in.Policies, policies...)
	return listError(plural(k), err)
}

// withoutKind says what it means that policies of a kind are not known.
func withoutKind(k *compile.Kind) string {
	const opposite = "so that both what is allowed here and what is denied may be the opposite"
	switch admin, baseline := slices.Contains(k.Tiers, policy.AdminTier), slices.Contains(k.Tiers, policy.BaselineTier); {
	case admin && baseline:
		return "they are evaluated before and after NetworkPolicies, " + opposite
	case admin:
		return "they are evaluated before NetworkPolicies, " + opposite
	}
	return "they are evaluated for pods that no NetworkPolicy selects, so that what is allowed here may be denied"
}

// plural returns the plural of a kind's name.
func plural(k *compile.Kind) string { return strings.TrimSuffix(k.Name, "y") + "ies" }

func (r *reader) list(ctx context.Context, k *compile.Kind, resource schema.GroupVersionResource, namespace string) ([]compile.Object, error) {
	list, err := r.policies.Resource(resource).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	objects := make([]compile.Object, len(list.Items))
	for i := range list.Items {
		objects[i] = k.New()
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, objects[i]); err != nil {
			return nil, fmt.Errorf("read %s: %w", list.Items[i].GetName(), err)
		}
	}
	return objects, nil
}

// readNamespaces reads the labels of namespaces. A namespace that may not be read gets the
// label that every namespace has.
func (r *reader) readNamespaces(ctx context.Context) error {
	api := r.client.CoreV1().Namespaces()
	namespaces, err := listed[*corev1.Namespace](api.List(ctx, metav1.ListOptions{}))
	if err == nil {
		r.in.Namespaces = namespaces
		return nil
	}
	if !apierrors.IsForbidden(err) {
		return listError("Namespaces", err)
	}
	var read []string
	for _, name := range r.namespacesSeen() {
		ns, err := api.Get(ctx, name, metav1.GetOptions{})
		switch {
		case err == nil:
			read = append(read, name)
		case apierrors.IsForbidden(err) || apierrors.IsNotFound(err):
			ns = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelMetadataName: name}}}
		default:
			return fmt.Errorf("get namespace %s: %w", name, err)
		}
		r.in.Namespaces = append(r.in.Namespaces, ns)
	}
	what := "Namespaces"
	if len(read) > 0 {
		what = "Namespaces other than " + strings.Join(read, " and ")
	}
	r.limit("%s could not be read: of their labels only %s is known, and selectors of others do not match", what, corev1.LabelMetadataName)
	return nil
}

// namespacesSeen returns the namespaces of all objects and those to read.
func (r *reader) namespacesSeen() []string {
	all := slices.Clone(r.namespaces)
	for _, pod := range r.in.Pods {
		all = append(all, pod.Namespace)
	}
	for _, p := range r.in.Policies {
		if p.GetNamespace() != "" {
			all = append(all, p.GetNamespace())
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// readNodes reads the nodes. If that is forbidden, nodes with pods are derived from them.
func (r *reader) readNodes(ctx context.Context) error {
	nodes, err := listed[*corev1.Node](r.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{}))
	switch {
	case err == nil:
		r.in.Nodes = nodes
	case apierrors.IsForbidden(err):
		r.in.Nodes = clusterfiles.NodesOf(r.in.Pods)
		r.limit("Nodes could not be read: only the addresses of those of the pods are known, and no labels, so that rules for nodes may match others than here")
	default:
		return listError("Nodes", err)
	}
	return nil
}

func (r *reader) readServices(ctx context.Context) error {
	services, lacking, err := permitted(r, "Services", func(namespace string) ([]*corev1.Service, error) {
		return listed[*corev1.Service](r.client.CoreV1().Services(namespace).List(ctx, metav1.ListOptions{}))
	})
	if lacking != "" {
		r.services.limit = lacking + " could not be read"
	}
	r.services.list = services
	return err
}

// readServiceCIDRs reads the ranges of Services. Without them only the addresses of known Services are
// known to be translated, as on servers that do not have the kind.
func (r *reader) readServiceCIDRs(ctx context.Context) error {
	cidrs, err := listed[*networkingv1.ServiceCIDR](r.client.NetworkingV1().ServiceCIDRs().List(ctx, metav1.ListOptions{}))
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		return nil
	}
	r.services.ranges = rangesOf(cidrs)
	return listError("ServiceCIDRs", err)
}

// withoutSelector selects the EndpointSlices of Services without a selector, few of many: those
// that the controller for selectors does not manage.
const withoutSelector = discoveryv1.LabelManagedBy + "!=endpointslice-controller.k8s.io"

// readEndpoints reads what is behind Services without a selector.
func (r *reader) readEndpoints(ctx context.Context) error {
	found, lacking, err := permitted(r, "EndpointSlices", func(namespace string) ([]*discoveryv1.EndpointSlice, error) {
		return listed[*discoveryv1.EndpointSlice](r.client.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{LabelSelector: withoutSelector}))
	})
	if lacking != "" {
		r.services.backendLimit = lacking + " could not be read"
	}
	r.services.backends = backendsOf(found, nil)
	return err
}

// readExposing reads Ingresses, and the routes of the Gateway API where it is served.
func (r *reader) readExposing(ctx context.Context) error {
	var unread []string
	for i := range exposure.Kinds {
		k := &exposure.Kinds[i]
		resource, found, err := r.servedExposing(ctx, k)
		if err != nil {
			return err
		}
		if !found {
			continue
		}
		where := r
		if !k.Namespaced {
			where = &reader{} // there is no namespace to fall back to
		}
		items, lacking, err := permitted(where, k.Plural, func(namespace string) ([]*unstructured.Unstructured, error) {
			return listed[*unstructured.Unstructured](r.policies.Resource(resource).Namespace(namespace).List(ctx, metav1.ListOptions{}))
		})
		switch {
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return err
		case lacking != "":
			unread = append(unread, k.Plural)
		}
		r.exposing = append(r.exposing, items...)
	}
	if unread != nil {
		r.exposingLimit = strings.Join(unread, ", ") + " could not all be read: what is exposed by them, and to which pods, is not known"
	}
	return nil
}

// servedExposing returns the resource of a kind in the version that is served. Kinds of
// Kubernetes itself need no look-up.
func (r *reader) servedExposing(ctx context.Context, k *exposure.Kind) (resource schema.GroupVersionResource, found bool, err error) {
	var resources []schema.GroupVersionResource
	for _, gvk := range k.GroupVersionKinds() {
		resources = append(resources, gvk.GroupVersion().WithResource(k.Plural))
	}
	if k.Group == networkingv1.GroupName {
		return resources[0], true, nil
	}
	return served.First(ctx, r.client.Discovery().RESTClient(), resources)
}

// readWorkloads adds a pod without an address for each workload that has none.
func (r *reader) readWorkloads(ctx context.Context) error {
	present := map[workloads.Ref]bool{}
	for _, pod := range r.in.Pods {
		present[workloads.Of(pod)] = true
	}
	complete := true
	for _, list := range []func(namespace string) ([]metav1.Object, error){
		func(namespace string) ([]metav1.Object, error) {
			return listed[metav1.Object](r.client.AppsV1().Deployments(namespace).List(ctx, metav1.ListOptions{}))
		},
		func(namespace string) ([]metav1.Object, error) {
			return listed[metav1.Object](r.client.AppsV1().StatefulSets(namespace).List(ctx, metav1.ListOptions{}))
		},
		func(namespace string) ([]metav1.Object, error) {
			return listed[metav1.Object](r.client.AppsV1().DaemonSets(namespace).List(ctx, metav1.ListOptions{}))
		},
		func(namespace string) ([]metav1.Object, error) {
			return listed[metav1.Object](r.client.BatchV1().CronJobs(namespace).List(ctx, metav1.ListOptions{}))
		},
	} {
		found, lacking, err := permitted(r, "workloads", list)
		if err != nil {
			return err
		}
		complete = complete && lacking == ""
		for _, pod := range r.podsOf(found) {
			if !present[workloads.Of(pod)] {
				r.in.Pods = append(r.in.Pods, pod)
			}
		}
	}
	if !complete {
		r.limit("Deployments, StatefulSets, DaemonSets and CronJobs could not all be read: the pods of those that have none today are not known")
	}
	return nil
}

// podsOf returns the pods that workloads create, and stores the workloads' selectors and labels.
func (r *reader) podsOf(found []metav1.Object) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, o := range found {
		pod, ok := workloads.PodOf(o)
		if !ok {
			continue
		}
		pods = append(pods, pod)
		r.workloads = append(r.workloads, workloads.LabelsOf(o, pod))
		if s, ok := workloads.SelectorOf(o); ok {
			r.selectors[workloads.Of(pod)] = s
		}
	}
	return pods
}

// listed returns the objects of a list, or the error of listing them.
func listed[T any](list runtime.Object, err error) ([]T, error) {
	if err != nil {
		return nil, err
	}
	var all []T
	err = meta.EachListItem(list, func(o runtime.Object) error {
		all = append(all, o.(T))
		return nil
	})
	return all, err
}
