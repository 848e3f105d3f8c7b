package suggest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
)

// selection is the set of pods that a selector selects in its namespace.
type selection struct {
	key      string // the same for equal selectors
	workload workloads.Ref
	selector metav1.LabelSelector
	pods     []*corev1.Pod
	further  []workloads.Ref // further workloads that it selects
}

// usual are the keys of labels that identify a workload. They are tried in this order if
// the workload's selector is not known. volatile ones change, so they are tried last.
var (
	usual = []string{
		"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component",
		"app", "k8s-app", "name", "component", "tier", "role",
	}
	volatile = []string{
		"app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart",
		"chart", "heritage", "release", "version",
	}
)

// selection returns a selector for the pods of a workload: the workload's own, extended by
// labels if it also selects other pods, as far as labels can distinguish them.
func (c *cluster) selection(ref workloads.Ref) (*selection, error) {
	if s := c.selections[ref]; s != nil {
		return s, nil
	}
	s := &selection{workload: ref, selector: *c.known(ref)}
	common := c.commonLabels(ref)
	for _, key := range order(common) {
		if _, has := s.selector.MatchLabels[key]; has {
			continue
		}
		more := s.selector.DeepCopy()
		metav1.AddLabelToSelector(more, key, common[key])
		if empty(&s.selector) || len(c.selected(ref.Namespace, more)) < len(c.selected(ref.Namespace, &s.selector)) {
			s.selector = *more
		}
	}
	if empty(&s.selector) {
		return nil, fmt.Errorf("%s has no label of its own to be selected by", c.titleOf(ref))
	}
	s.key = ref.Namespace + " " + metav1.FormatLabelSelector(&s.selector)
	s.pods = c.selected(ref.Namespace, &s.selector)
	for _, pod := range s.pods {
		if w := workloads.Of(pod); w != ref && !slices.Contains(s.further, w) {
			s.further = append(s.further, w)
		}
	}
	slices.SortFunc(s.further, workloads.Ref.Compare)
	c.selections[ref] = s
	return s, nil
}

// known returns the selector of a workload without labels that only some of its pods have.
// It is empty if the selector is not known.
func (c *cluster) known(ref workloads.Ref) *metav1.LabelSelector {
	s := c.input.Selectors[ref]
	if s == nil {
		return &metav1.LabelSelector{}
	}
	s = s.DeepCopy()
	maps.DeleteFunc(s.MatchLabels, func(key, _ string) bool { return slices.Contains(workloads.ControllerLabels, key) })
	s.MatchExpressions = slices.DeleteFunc(s.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool {
		return slices.Contains(workloads.ControllerLabels, r.Key)
	})
	return s
}

func empty(s *metav1.LabelSelector) bool { return len(s.MatchLabels)+len(s.MatchExpressions) == 0 }

// commonLabels returns the labels that all pods of a workload have and that selectors can
// name.
func (c *cluster) commonLabels(ref workloads.Ref) labels.Set {
	var common labels.Set
	for _, pod := range c.byWorkload[ref] {
		if common == nil {
			common = maps.Clone(pod.Labels)
		}
		maps.DeleteFunc(common, func(key, value string) bool {
			other, has := pod.Labels[key]
			return !has || other != value
		})
	}
	maps.DeleteFunc(common, func(key, value string) bool {
		return slices.Contains(workloads.ControllerLabels, key) || len(validation.IsQualifiedName(key)) > 0 || len(validation.IsValidLabelValue(value)) > 0
	})
	return common
}

// order returns the keys of labels in the order in which to try them.
func order(set labels.Set) []string {
	place := func(key string) int {
		if i := slices.Index(usual, key); i >= 0 {
			return i
		}
		if slices.Contains(volatile, key) {
			return len(usual) + 1
		}
		return len(usual)
	}
	keys := slices.Collect(maps.Keys(set))
	slices.SortFunc(keys, func(a, b string) int {
		if pa, pb := place(a), place(b); pa != pb {
			return pa - pb
		}
		return strings.Compare(a, b)
	})
	return keys
}

// selected returns the pods of a namespace that a selector selects.
func (c *cluster) selected(namespace string, s *metav1.LabelSelector) []*corev1.Pod {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return nil
	}
	var pods []*corev1.Pod
	for _, pod := range c.objects.Pods {
		if pod.Namespace == namespace && selectable(pod) && selector.Matches(labels.Set(pod.Labels)) {
			pods = append(pods, pod)
		}
	}
	return pods
}
