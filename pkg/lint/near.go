package lint

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
	"sigs.k8s.io/kube-network-policies/pkg/spelling"
)

// selectorText is a selector for people: "app=db", "every pod".
func selectorText(s *policy.PodSelector) string {
	text := s.Pods.String()
	if s.Pods.Empty() {
		text = "every pod"
	}
	if s.Namespace == "" && !s.Namespaces.Empty() {
		text += " of namespaces with " + s.Namespaces.String()
	}
	return text
}

// hint is what was probably meant, empty if there is no guess.
type hint string

func (h hint) fix() string {
	if _, instead, ok := strings.Cut(string(h), ": "); ok {
		return "Write " + instead + "."
	}
	return ""
}

// near returns what a selector that selects no pod may have been meant to be: labels
// that differ by a letter or two, or a label of another key with the same value.
func (c *cluster) near(s *policy.PodSelector) hint {
	namespaces := []string{s.Namespace}
	if s.Namespace == "" {
		namespaces = c.namespacesOf(s.Namespaces)
		if len(namespaces) == 0 {
			var sets []labels.Set
			for _, name := range slices.Sorted(maps.Keys(c.namespaces)) {
				sets = append(sets, c.namespaces[name].Labels)
			}
			return nearLabels("namespaces", s.Namespaces, sets)
		}
	}
	var sets []labels.Set
	for _, ns := range namespaces {
		for _, p := range c.byNamespace[ns] {
			sets = append(sets, p.object.Labels)
		}
	}
	return nearLabels("pods", s.Pods, sets)
}

// nearLabels finds the label that is nearest to what s requires and no set has, among
// the sets that have the rest of what it requires.
func nearLabels(what string, s labels.Selector, sets []labels.Set) hint {
	requirements, _ := s.Requirements()
	best, found := 100, ""
	for i := range requirements {
		r := &requirements[i]
		if op := r.Operator(); op != selection.In && op != selection.Equals && op != selection.DoubleEquals {
			continue
		}
		rest := labels.NewSelector().Add(slices.Delete(slices.Clone(requirements), i, i+1)...)
		for _, set := range sets {
			if r.Matches(set) || !rest.Matches(set) {
				continue
			}
			for _, key := range slices.Sorted(maps.Keys(set)) {
				for value := range r.Values() {
					if d := labelDistance(r.Key(), value, key, set[key]); d < best {
						best, found = d, key+"="+set[key]
					}
				}
			}
		}
	}
	if found == "" {
		return ""
	}
	return hint(fmt.Sprintf("near it there are %s with: %s", what, strings.Replace(found, "=", ": ", 1)))
}

const tooFar = 100

// labelDistance is how far a label is from the one that was asked for.
func labelDistance(key, value, otherKey, other string) int {
	switch {
	case key == otherKey && isNear(value, other):
		return distance(value, other)
	case value == other && value != "" && isNear(key, otherKey):
		return distance(key, otherKey)
	case value == other && value != "" && slices.Contains(nameLabels, key) && slices.Contains(nameLabels, otherKey):
		return 5 // app: web instead of app.kubernetes.io/name: web
	}
	return tooFar
}

// isNear reports whether two names differ by so little that one is probably the other,
// misspelled. Numbers at the end make different names.
func isNear(a, b string) bool {
	const digits = "0123456789"
	if a == b || strings.TrimRight(a, digits) == strings.TrimRight(b, digits) {
		return false
	}
	return distance(a, b) <= max(1, min(3, min(len(a), len(b))/4)) && min(len(a), len(b)) > 1
}

// nearest returns the one of candidates that is nearest to name, empty if none is near.
func nearest(name string, candidates []string) string {
	best, found := tooFar, ""
	for _, o := range slices.Sorted(slices.Values(candidates)) {
		if d := distance(name, o); isNear(name, o) && d < best {
			best, found = d, o
		}
	}
	return found
}

// distance is how far a is from b in spelling. Case counts once.
func distance(a, b string) int {
	if a != b && strings.EqualFold(a, b) {
		return 1
	}
	return spelling.Distance(a, b)
}
