package cluster

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// runName names one run. Several runs can use a cluster at the same time, because namespace x of a
// scenario is RUN-x, policy p is RUN-p, and cluster-scoped policies select only what has the label of
// their run.
type runName string

func (r runName) of(name string) string { return string(r) + "-" + name }

// named returns state with the names that it has in the cluster.
func (r runName) named(state *netpol.State) (*netpol.State, error) {
	s := state.Clone()
	for i, namespace := range s.Namespaces {
		namespace = namespace.DeepCopy()
		namespace.Name = r.of(namespace.Name)
		namespace.Labels[corev1.LabelMetadataName] = namespace.Name
		s.Namespaces[i] = namespace
	}
	for i, pod := range s.Pods {
		s.Pods[i] = pod.DeepCopy()
		s.Pods[i].Namespace = r.of(pod.Namespace)
	}
	for i, policy := range s.Policies {
		content, err := as[map[string]any](policy)
		if err != nil {
			return nil, fmt.Errorf("policy %s: %w", netpol.PolicyName(policy), err)
		}
		r.nameSelected(content)
		if s.Policies[i], err = as[*networkingv1.NetworkPolicy](content); err != nil {
			return nil, fmt.Errorf("policy %s: %w", netpol.PolicyName(policy), err)
		}
		s.Policies[i].Namespace = r.of(policy.Namespace)
	}
	return s, nil
}

// scenarioName returns what scenarios call a pod of the cluster.
func (r runName) scenarioName(pod *corev1.Pod) string {
	return strings.TrimPrefix(netpol.PodName(pod), r.of(""))
}

// nameSelected changes the names of namespaces in the selectors of a decoded object.
func (r runName) nameSelected(value any) {
	switch value := value.(type) {
	case []any:
		for _, item := range value {
			r.nameSelected(item)
		}
	case map[string]any:
		if name, ok := value[corev1.LabelMetadataName].(string); ok {
			value[corev1.LabelMetadataName] = r.of(name)
		}
		if names, ok := value["values"].([]any); ok && value["key"] == corev1.LabelMetadataName {
			value["values"] = r.namesOf(names)
		}
		for _, field := range value {
			r.nameSelected(field)
		}
	}
}

func (r runName) namesOf(names []any) []any {
	named := slices.Clone(names)
	for i, name := range named {
		if text, ok := name.(string); ok {
			named[i] = r.of(text)
		}
	}
	return named
}

// nameAdmin gives a cluster-scoped object its name and labels, and restricts it to what belongs to the
// run: the namespaces of its subject and the groups that it refers to.
func (r runName) nameAdmin(object *unstructured.Unstructured) error {
	if object.GetKind() != baselinePolicy.name { // of which there is one in a cluster, with a fixed name
		object.SetName(r.of(object.GetName()))
	}
	labels := map[string]string{ownerLabel: ownerValue, runLabel: string(r)}
	for key, value := range object.GetLabels() {
		labels[key] = value
	}
	object.SetLabels(labels)
	r.nameSelected(object.Object["spec"])
	for _, peer := range peers(object) {
		groups, _ := peer["cidrGroups"].(map[string]any)
		if names, ok := groups["names"].([]any); ok {
			groups["names"] = r.namesOf(names)
		}
		if _, ok := groups["selector"]; ok {
			if err := r.restrict(groups, "selector"); err != nil {
				return err
			}
		}
	}
	if object.GetKind() == cidrGroup.name {
		return nil
	}
	return r.restrictSubject(object)
}

// restrictSubject restricts the subject of a policy to namespaces of the run. A subject without a known
// field is refused: it could be any pods.
func (r runName) restrictSubject(policy *unstructured.Unstructured) error {
	for _, path := range [][]string{{"namespaces"}, {"pods", "namespaceSelector"}, {"serviceAccounts", "namespaceSelector"}} {
		path = append([]string{"spec", "subject"}, path...)
		if _, found, _ := unstructured.NestedMap(policy.Object, path...); found {
			return r.restrict(policy.Object, path...)
		}
	}
	return fmt.Errorf("%w: the subject has no known field", netpol.ErrRefused)
}

// restrict adds the label of the run to a selector.
func (r runName) restrict(object map[string]any, selector ...string) error {
	return unstructured.SetNestedField(object, string(r), append(slices.Clone(selector), "matchLabels", runLabel)...)
}
