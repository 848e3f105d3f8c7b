package oracle

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// selects: NP-24 and CN-9, every requirement must hold, and the empty selector selects everything.
// An unreadable selector selects nothing.
func selects(s metav1.LabelSelector, labels map[string]string) bool {
	if !selectorIsValid(s) {
		return false
	}
	for key, want := range s.MatchLabels {
		if got, has := labels[key]; !has || got != want {
			return false
		}
	}
	for _, r := range s.MatchExpressions {
		if !requirementHolds(r, labels) {
			return false
		}
	}
	return true
}

// requirementHolds: NP-24, NotIn and DoesNotExist hold for labels without the key.
func requirementHolds(r metav1.LabelSelectorRequirement, labels map[string]string) bool {
	value, has := labels[r.Key]
	switch r.Operator {
	case metav1.LabelSelectorOpIn:
		return has && slices.Contains(r.Values, value)
	case metav1.LabelSelectorOpNotIn:
		return !has || !slices.Contains(r.Values, value)
	case metav1.LabelSelectorOpExists:
		return has
	case metav1.LabelSelectorOpDoesNotExist:
		return !has
	}
	return false
}

// selectorIsValid: NP-24, old objects may contain keys and values that no label can have, and newer
// ones unknown operators.
func selectorIsValid(s metav1.LabelSelector) bool {
	for key, value := range s.MatchLabels {
		if !validKey(key) || !validValue(value) {
			return false
		}
	}
	return !slices.ContainsFunc(s.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool {
		return !requirementIsValid(r)
	})
}

func requirementIsValid(r metav1.LabelSelectorRequirement) bool {
	if !validKey(r.Key) {
		return false
	}
	switch r.Operator {
	case metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn:
		allValid := !slices.ContainsFunc(r.Values, func(v string) bool { return !validValue(v) })
		return len(r.Values) > 0 && allValid
	case metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist:
		return len(r.Values) == 0
	}
	return false
}

func validKey(key string) bool     { return len(content.IsLabelKey(key)) == 0 }
func validValue(value string) bool { return len(content.IsLabelValue(value)) == 0 }

// isEmpty reports whether a selector has no requirement, so that it selects
// everything.
func isEmpty(s metav1.LabelSelector) bool {
	return len(s.MatchLabels) == 0 && len(s.MatchExpressions) == 0
}
