package clusterstate

import (
	"cmp"
	"errors"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	operators "k8s.io/apimachinery/pkg/selection"
)

// PodSet is a set of pods that an API server can list and watch. The zero PodSet is all pods.
type PodSet struct {
	Namespace string // empty for all namespaces
	Labels    string // a label selector as in requests, empty for any labels
}

// Includes reports whether all pods of o are certainly in s: whether o's requirements imply those
// of s.
func (s PodSet) Includes(o PodSet) bool {
	if s.Namespace != "" && s.Namespace != o.Namespace {
		return false
	}
	if s.Labels == "" || s.Labels == o.Labels {
		return true
	}
	required, err := labels.ParseToRequirements(s.Labels)
	fulfilled, errOther := labels.ParseToRequirements(o.Labels)
	return err == nil && errOther == nil && !slices.ContainsFunc(required, func(r labels.Requirement) bool {
		return !slices.ContainsFunc(fulfilled, func(q labels.Requirement) bool { return implies(q, r) })
	})
}

// replaces reports whether s makes o superfluous: s includes o and differs from it. Of two sets
// that include each other, exactly one replaces the other.
func (s PodSet) replaces(o PodSet) bool {
	return s.Includes(o) && (!o.Includes(s) || comparePodSets(s, o) < 0)
}

// implies reports whether labels that fulfil q certainly fulfil r.
func implies(q, r labels.Requirement) bool {
	return q.Key() == r.Key() && (hasValues(q) && hasValues(r) && r.Values().IsSuperset(q.Values()) || q.String() == r.String())
}

// hasValues reports whether r requires the label to have one of certain values.
func hasValues(r labels.Requirement) bool {
	return r.Operator() == operators.In || r.Operator() == operators.Equals || r.Operator() == operators.DoubleEquals
}

func comparePodSets(s, o PodSet) int {
	return cmp.Or(cmp.Compare(s.Namespace, o.Namespace), cmp.Compare(s.Labels, o.Labels))
}

const (
	// maxSelectors is the most selectors that are watched in one namespace; beyond that the whole
	// namespace is watched. maxNamespaces is the most namespaces in which one selector is watched;
	// beyond that it is watched in all of them.
	maxSelectors, maxNamespaces = 4, 8
	// maxValues is the most label values in a merged selector, which keeps the request below 4 KB.
	maxValues = 50
	// maxSelector is the longest selector in a request, in bytes. A policy can have selectors a
	// hundred times as long.
	maxSelector = 4 << 10
)

// Cover returns between one and limit sets that include all needs. It keeps the needs where
// possible, merges several into one that is exactly their union, and uses wider sets in place of
// too many needs or of a selector that is too long. No set includes another.
func Cover(needs []PodSet, limit int) []PodSet {
	// Policies can have thousands of selectors: do not try to merge more than can fit.
	needs = widen(shorten(needs), maxSelectors*maxValues, ofNamespace)
	if len(needs) > limit*maxValues {
		return []PodSet{{}}
	}
	for widest := maxSelectors; ; widest /= 2 {
		sets := widen(needs, maxNamespaces*widest/maxSelectors, func(s PodSet) PodSet { return PodSet{Labels: s.Labels} })
		sets = widen(merge(sets), widest, ofNamespace)
		switch {
		case len(sets) <= limit:
			return slices.DeleteFunc(slices.Clone(sets), func(s PodSet) bool {
				return slices.ContainsFunc(sets, func(o PodSet) bool { return o.replaces(s) })
			})
		case widest == 0:
			return []PodSet{{}}
		}
	}
}

// ofNamespace returns the set of all pods of the namespace of a set.
func ofNamespace(s PodSet) PodSet { return PodSet{Namespace: s.Namespace} }

// shorten replaces sets whose selectors are too long for a request with their whole namespaces.
func shorten(sets []PodSet) []PodSet {
	short := slices.Clone(sets)
	for i, s := range short {
		if len(s.Labels) > maxSelector {
			short[i] = ofNamespace(s)
		}
	}
	return short
}

// widen replaces sets with a wider one if it would contain more than limit of them, and removes
// sets that another includes. A set is not widened to all pods.
func widen(sets []PodSet, limit int, wider func(PodSet) PodSet) []PodSet {
	within := map[PodSet]int{}
	for _, s := range sets {
		if w := wider(s); w != (PodSet{}) && w != s {
			within[w]++
		}
	}
	all := map[PodSet]bool{}
	for _, s := range sets {
		if w := wider(s); within[w] > limit && s != w {
			s = w
		}
		all[s] = true
	}
	var widest []PodSet
	for s := range all {
		if !(s != PodSet{} && all[PodSet{}]) &&
			!(s.Namespace != "" && s.Labels != "" && (all[PodSet{Namespace: s.Namespace}] || all[PodSet{Labels: s.Labels}])) {
			widest = append(widest, s)
		}
	}
	slices.SortFunc(widest, comparePodSets)
	return widest
}

// merge replaces sets that differ only in the values of one label with their exact union. For each
// label it looks only at the selectors that have it, because there can be thousands.
func merge(sets []PodSet) []PodSet {
	merged := map[PodSet]bool{}
	having := map[string][]PodSet{} // by label key; some are already merged
	add := func(s PodSet) {
		merged[s] = true
		requirements, _ := labels.ParseToRequirements(s.Labels)
		for _, r := range requirements {
			having[r.Key()] = append(having[r.Key()], s)
		}
	}
	for _, s := range sets {
		add(s)
	}
	for _, key := range slices.Sorted(maps.Keys(having)) {
		withKey := slices.DeleteFunc(having[key], func(s PodSet) bool { return !merged[s] })
		for _, s := range withKey {
			delete(merged, s)
		}
		for _, s := range mergeValues(withKey, key) {
			add(s)
		}
	}
	return slices.Collect(maps.Keys(merged))
}

// mergeValues merges sets that differ only in the values of one label.
func mergeValues(sets []PodSet, key string) (merged []PodSet) {
	values := map[PodSet][][]string{} // by the rest of the set
	for _, s := range sets {
		if rest, possible, ok := s.without(key); ok {
			values[rest] = append(values[rest], possible)
		} else {
			merged = append(merged, s)
		}
	}
	for rest, groups := range values {
		slices.SortFunc(groups, slices.Compare)
		current := groups[0]
		for _, next := range groups[1:] {
			union := slices.Compact(slices.Sorted(slices.Values(slices.Concat(current, next))))
			if len(union) > maxValues {
				merged = append(merged, rest.with(key, current))
				union = next
			}
			current = union
		}
		merged = append(merged, rest.with(key, current))
	}
	return merged
}

// without splits off the requirement on one label: it returns the rest of the set and the label's
// possible values in order. ok is false unless the set has exactly one requirement on the label,
// which lists values.
func (s PodSet) without(key string) (rest PodSet, values []string, ok bool) {
	requirements, err := labels.ParseToRequirements(s.Labels)
	others := slices.DeleteFunc(slices.Clone(requirements), func(r labels.Requirement) bool { return r.Key() == key })
	i := slices.IndexFunc(requirements, func(r labels.Requirement) bool { return r.Key() == key && hasValues(r) })
	if err != nil || i < 0 || len(others) != len(requirements)-1 {
		return s, nil, false
	}
	return PodSet{s.Namespace, selector(others...)}, slices.Sorted(slices.Values(requirements[i].ValuesUnsorted())), true
}

// with adds the requirement that a label has one of values.
func (s PodSet) with(key string, values []string) PodSet {
	operator := operators.In
	if len(values) == 1 {
		operator = operators.Equals
	}
	required, err := labels.NewRequirement(key, operator, values)
	others, errOthers := labels.ParseToRequirements(s.Labels)
	if err := errors.Join(err, errOthers); err != nil {
		panic(err) // they were parsed before
	}
	return PodSet{s.Namespace, selector(append(others, *required)...)}
}

// selector returns a label selector as in requests.
func selector(requirements ...labels.Requirement) string {
	return labels.NewSelector().Add(requirements...).String()
}
