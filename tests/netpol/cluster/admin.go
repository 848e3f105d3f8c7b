package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// applyAdminPolicies makes the owned cluster-scoped objects match state. They are written untyped,
// because the types of the API lack the fields of proposals.
func (b *Backend) applyAdminPolicies(ctx context.Context, state *netpol.State) error {
	wanted := make(map[kind][]*unstructured.Unstructured)
	for _, policy := range state.AllPolicies() {
		if policy.GetNamespace() != "" {
			continue // a NetworkPolicy
		}
		k, err := b.kindOf(policy)
		if err != nil {
			return err
		}
		object, err := b.object(k, policy)
		if err != nil {
			return err
		}
		wanted[k] = append(wanted[k], object)
	}
	for _, k := range b.kinds {
		if err := b.applyKind(ctx, k, wanted[k]); err != nil {
			return err
		}
	}
	return nil
}

// kindOf returns the kind of a policy as the API server serves it.
func (b *Backend) kindOf(policy netpol.Policy) (kind, error) {
	name, _, _ := strings.Cut(netpol.PolicyName(policy), "/")
	i := slices.IndexFunc(b.kinds, func(k kind) bool { return k.name == name })
	if i < 0 {
		return kind{}, fmt.Errorf("policy %s: the API server has no kind %q", netpol.PolicyName(policy), name)
	}
	return b.kinds[i], nil
}

// object returns what is written for a policy: of this run, and with the names of nodes for node-1,
// node-2 and so on.
func (b *Backend) object(k kind, policy netpol.Policy) (*unstructured.Unstructured, error) {
	content, err := as[map[string]any](policy)
	if err != nil {
		return nil, fmt.Errorf("policy %s: %w", netpol.PolicyName(policy), err)
	}
	object := &unstructured.Unstructured{Object: map[string]any{"spec": content["spec"]}}
	object.SetGroupVersionKind(k.resource.GroupVersion().WithKind(k.name))
	object.SetName(policy.GetName())
	object.SetLabels(policy.GetLabels())
	if err := b.name.nameAdmin(object); err != nil {
		return nil, fmt.Errorf("policy %s: %w", netpol.PolicyName(policy), err)
	}
	nameNodes(object, b.nodes)
	return object, nil
}

// applyKind makes the owned objects of a kind match the wanted ones. It is an error if another owner
// has an object with a wanted name.
func (b *Backend) applyKind(ctx context.Context, k kind, wanted []*unstructured.Unstructured) error {
	client := b.objects.Resource(k.resource)
	existing, err := client.List(ctx, metav1.ListOptions{LabelSelector: b.selectOwn()})
	if err != nil {
		return fmt.Errorf("list %s: %w", k.resource.Resource, err)
	}
	old := make(map[string]*unstructured.Unstructured)
	for i := range existing.Items {
		old[existing.Items[i].GetName()] = &existing.Items[i]
	}
	for _, object := range wanted {
		current, exists := old[object.GetName()]
		delete(old, object.GetName())
		switch {
		case !exists:
			_, err = client.Create(ctx, object, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
		case !alike(current, object):
			object.SetResourceVersion(current.GetResourceVersion())
			_, err = client.Update(ctx, object, metav1.UpdateOptions{FieldValidation: metav1.FieldValidationStrict})
		}
		if apierrors.IsAlreadyExists(err) {
			err = errors.New("exists, and is not of this run: it is another suite's, or the cluster's own")
		}
		if err != nil {
			return fmt.Errorf("policy %s: %w", netpol.PolicyName(object), refused(err))
		}
	}
	for name, object := range old {
		if err := client.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete policy %s: %w", netpol.PolicyName(object), err)
		}
	}
	return nil
}

// alike reports whether two objects have the same spec and labels.
func alike(a, b *unstructured.Unstructured) bool {
	return equality.Semantic.DeepEqual(a.Object["spec"], b.Object["spec"]) && maps.Equal(a.GetLabels(), b.GetLabels())
}

// nameNodes changes the peers of a policy that are one node, by its host name.
func nameNodes(policy *unstructured.Unstructured, nodes []string) {
	for _, peer := range peers(policy) {
		name, _, _ := unstructured.NestedString(peer, "nodes", "matchLabels", corev1.LabelHostname)
		if i := nodeIndex(name); i >= 0 && i < len(nodes) {
			selector, _, _ := unstructured.NestedMap(peer, "nodes")
			_ = unstructured.SetNestedField(selector, nodes[i], "matchLabels", corev1.LabelHostname)
			peer["nodes"] = selector
		}
	}
}

// peers returns the peers of all rules of a policy.
func peers(policy *unstructured.Unstructured) []map[string]any {
	var all []map[string]any
	for direction, field := range map[string]string{"ingress": "from", "egress": "to"} {
		for _, rule := range items(policy.Object, "spec", direction) {
			all = append(all, items(rule, field)...)
		}
	}
	return all
}

// items returns the objects of a list, none if there is no such list.
func items(object map[string]any, path ...string) []map[string]any {
	list, _, _ := unstructured.NestedFieldNoCopy(object, path...)
	values, _ := list.([]any)
	var all []map[string]any
	for _, value := range values {
		if item, ok := value.(map[string]any); ok {
			all = append(all, item)
		}
	}
	return all
}

// as returns an object in another form. Whole numbers in untyped ones are int64, as in answers of the
// API server.
func as[T any](o any) (T, error) {
	var other T
	text, err := json.Marshal(o)
	if err != nil {
		return other, err
	}
	err = json.Unmarshal(text, &other)
	return other, err
}
