package clusterstate

import (
	"cmp"
	"errors"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	operators "k8s.io/apimachinery/pkg/selection"
)

// PodSet is some pods of a cluster, as an API server can list and watch them. The zero
// PodSet is all pods.
type PodSet struct {
	Namespace string // empty for those of all namespaces
	Labels    string // a label selector as requests have it, empty for any labels
}

// Includes reports whether all pods of o are known to be in s: what s requires of labels, o does,
// too.
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

// replaces reports whether s is another set than o that includes it. Of two that include each
// other, one replaces the other.
func (s PodSet) replaces(o PodSet) bool {
	return s.Includes(o) && (!o.Includes(s) || comparePodSets(s, o) < 0)
}

// implies reports whether labels that fulfil q are known to fulfil r.
func implies(q, r labels.Requirement) bool {
	return q.Key() == r.Key() && (hasValues(q) && hasValues(r) && r.Values().IsSuperset(q.Values()) || q.String() == r.String())
}

// hasValues reports whether r requires one of some values.
func hasValues(r labels.Requirement) bool {
	return r.Operator() == operators.In || r.Operator() == operators.Equals || r.Operator() == operators.DoubleEquals
}

func comparePodSets(s, o PodSet) int {
	return cmp.Or(cmp.Compare(s.Namespace, o.Namespace), cmp.Compare(s.Labels, o.Labels))
}

const (
	// maxSelectors is how many selectors of one namespace are watched before the whole
	// namespace is, and maxNamespaces in how many namespaces one selector is watched
	// before it is in all of them.
	maxSelectors, maxNamespaces = 4, 8
	// maxValues is how many values of a label a selector has at most that several were merged
	// to: a request of less than 4 KB.
	maxValues = 50
	// maxSelector is how long a selector may be in a request, in bytes. One policy can have
	// some that are a hundred times as long.
	maxSelector = 4 << 10
)

// Cover returns at most limit sets, at least one, that include all needs: these as far as
// possible, several in one if that is exactly these, and wider ones in the place of many, or of
// one whose selector is too long. No set includes another one.
func Cover(needs []PodSet, limit int) []PodSet {
	// What cannot be merged to a few sets is not tried: policies can have thousands of selectors.
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

// shorten replaces sets whose selectors are too long for a request by those of their namespaces.
func shorten(sets []PodSet) []PodSet {
	short := slices.Clone(sets)
	for i, s := range short {
		if len(s.Labels) > maxSelector {
			short[i] = ofNamespace(s)
		}
	}
	return short
}

// widen replaces the sets by a wider one where more than limit would be in it, and removes
// those that others include. A set is not widened to all pods.
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

// merge replaces sets that differ only in the values of one label by one set of exactly their
// pods. Each label is looked for in the selectors that have it alone: there can be thousands.
func merge(sets []PodSet) []PodSet {
	merged := map[PodSet]bool{}
	having := map[string][]PodSet{} // by key of a label; some are merged already
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
		of := slices.DeleteFunc(having[key], func(s PodSet) bool { return !merged[s] })
		for _, s := range of {
			delete(merged, s)
		}
		for _, s := range mergeValues(of, key) {
			add(s)
		}
	}
	return slices.Collect(maps.Keys(merged))
}

// mergeValues merges sets that differ only in the values of one label. Each of them is within one
// of the merged ones.
func mergeValues(sets []PodSet, key string) (merged []PodSet) {
	values := map[PodSet][][]string{} // by the rest of the set
	for _, s := range sets {
		if rest, of, ok := s.without(key); ok {
			values[rest] = append(values[rest], of)
		} else {
			merged = append(merged, s)
		}
	}
	for rest, groups := range values {
		slices.SortFunc(groups, slices.Compare)
		some := groups[0]
		for _, more := range groups[1:] {
			both := slices.Compact(slices.Sorted(slices.Values(slices.Concat(some, more))))
			if len(both) > maxValues {
				merged = append(merged, rest.with(key, some))
				both = more
			}
			some = both
		}
		merged = append(merged, rest.with(key, some))
	}
	return merged
}

// without returns the set without what it requires of one label, and the values that the label
// may have, in order. It reports whether that is all that is required of it.
func (s PodSet) without(key string) (rest PodSet, values []string, ok bool) {
	requirements, err := labels.ParseToRequirements(s.Labels)
	others := slices.DeleteFunc(slices.Clone(requirements), func(r labels.Requirement) bool { return r.Key() == key })
	i := slices.IndexFunc(requirements, func(r labels.Requirement) bool { return r.Key() == key && hasValues(r) })
	if err != nil || i < 0 || len(others) != len(requirements)-1 {
		return s, nil, false
	}
	return PodSet{s.Namespace, selector(others...)}, slices.Sorted(slices.Values(requirements[i].ValuesUnsorted())), true
}

// with returns the pods of the set whose label has one of some values.
func (s PodSet) with(key string, values []string) PodSet {
	operator := operators.In
	if len(values) == 1 {
		operator = operators.Equals
	}
	required, err := labels.NewRequirement(key, operator, values)
	others, errOthers := labels.ParseToRequirements(s.Labels)
	if err := errors.Join(err, errOthers); err != nil {
		panic(err) // they were read
	}
	return PodSet{s.Namespace, selector(append(others, *required)...)}
}

// selector returns a label selector as requests have it.
func selector(requirements ...labels.Requirement) string {
	return labels.NewSelector().Add(requirements...).String()
}
