package lint

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"sigs.k8s.io/kube-network-policies/pkg/base/spelling"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// selectorText describes a selector: "app=db", "every pod".
func selectorText(s *policy.PodSelector) string {
	text := s.Pods.String()
	switch {
	case s.SelectsWhole():
		text = "every pod"
	case s.Accounts != nil:
		text = "every pod of service account " + strings.Join(s.Accounts, " or ")
	}
	if s.Namespace == "" && !s.Namespaces.Empty() {
		text += " of namespaces with " + s.Namespaces.String()
	}
	return text
}

// hint is a guess at the intended text, empty if there is none.
type hint string

// near guesses what a selector that selects no pod was meant to be: labels that differ by a
// letter or two, or the same value under another key. Labels that are taken are not meant. It looks
// only at pods of one namespace: those of others are rarely meant.
func (c *cluster) near(s *policy.PodSelector, taken func(key, value string) bool) hint {
	namespace := s.Namespace
	if namespace == "" {
		namespaces := c.namespacesOf(s.Namespaces)
		if len(namespaces) != 1 {
			return ""
		}
		namespace = namespaces[0]
	}
	var sets []labels.Set
	for _, p := range c.byNamespace[namespace] {
		sets = append(sets, p.object.Labels)
	}
	return nearLabels(s.Pods, sets, taken)
}

// nearSubject guesses what the subject of a policy was meant to be: no pods that another policy
// selects by their name.
func (c *cluster) nearSubject(p *compiled) hint {
	return c.near(p.Subject, func(key, value string) bool {
		return slices.ContainsFunc(c.requiring[podLabel{p.Ref.Namespace, key, value}], func(o *compiled) bool { return o != p })
	})
}

// nearPeer guesses what the i-th peer of a rule was meant to be: no pods that another item names.
func (c *cluster) nearPeer(r *policy.Rule, i int) hint {
	return c.near(r.Peers[i].Pods, func(key, value string) bool {
		return slices.ContainsFunc(r.Peers, func(o policy.Peer) bool {
			if o.Pods == nil {
				return false
			}
			named, ok := o.Pods.Pods.RequiresExactMatch(key)
			return ok && named == value
		})
	})
}

// nearLabels finds the missing label in s and the nearest label to it, among the sets that
// satisfy the other requirements of s.
func nearLabels(s labels.Selector, sets []labels.Set, taken func(key, value string) bool) hint {
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
					if d := labelDistance(r.Key(), value, key, set[key]); d < best && !taken(key, set[key]) {
						best, found = d, key+"="+set[key]
					}
				}
			}
		}
	}
	if found == "" {
		return ""
	}
	return hint(fmt.Sprintf("near it there are pods with: %s", strings.Replace(found, "=", ": ", 1)))
}

const tooFar = 100

// labelDistance returns how far a label is from the required one.
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

// isNear reports whether one name is probably a misspelling of the other. Names that differ
// in a trailing number are different names.
func isNear(a, b string) bool {
	const digits = "0123456789"
	if a == b || strings.TrimRight(a, digits) == strings.TrimRight(b, digits) {
		return false
	}
	return distance(a, b) <= max(1, min(3, min(len(a), len(b))/4)) && min(len(a), len(b)) > 1
}

// nearest returns the candidate nearest to name, or "" if none is near.
func nearest(name string, candidates []string) string {
	best, found := tooFar, ""
	for _, o := range slices.Sorted(slices.Values(candidates)) {
		if d := distance(name, o); isNear(name, o) && d < best {
			best, found = d, o
		}
	}
	return found
}

// distance is the edit distance, in which case differences count as one edit.
func distance(a, b string) int {
	if a != b && strings.EqualFold(a, b) {
		return 1
	}
	return spelling.Distance(a, b)
}
