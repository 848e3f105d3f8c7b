package lint

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
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

// nearTo guesses what a selector that selects no pod was meant to be: labels that differ by a
// letter or two, or the same value under another key. Labels that are taken are not meant. It looks
// only at pods of one namespace: those of others are rarely meant.
func (c *cluster) nearTo(s *policy.PodSelector, taken func(key, value string) bool) hint {
	namespace := s.Namespace
	if namespace == "" {
		namespaces := c.namespacesOf(s.Namespaces)
		if len(namespaces) != 1 {
			return ""
		}
		namespace = namespaces[0]
	}
	requirements, _ := s.Pods.Requirements()
	best, found := tooFar, podLabel{}
	for i := range requirements {
		key, value, ok := reachability.ExactLabel(&requirements[i])
		if !ok {
			continue
		}
		rest := labels.NewSelector().Add(slices.Delete(slices.Clone(requirements), i, i+1)...)
		for _, label := range c.nearLabels(podLabel{namespace, key, value}) {
			d := labelDistance(key, value, label.key, label.value)
			if d < best && !taken(label.key, label.value) && c.some(label, &requirements[i], rest) {
				best, found = d, label
			}
		}
	}
	if best == tooFar {
		return ""
	}
	return hint(fmt.Sprintf("near it there are pods with: %s: %s", found.key, found.value))
}

// some reports whether a pod with the label satisfies the rest of a selector and lacks the
// requirement r of it.
func (c *cluster) some(label podLabel, r *labels.Requirement, rest labels.Selector) bool {
	pods := c.labelledPods(label.namespace, rest, c.byLabel[label])
	return slices.ContainsFunc(pods, func(p *pod) bool {
		c.compared++
		set := labels.Set(p.object.Labels)
		return set[label.key] == label.value && !r.Matches(set) && rest.Matches(set)
	})
}

// nearIndex finds the labels of pods that are near a label without looking at all of them.
type nearIndex struct {
	values map[podLabel][]podLabel // by the key and the value without any one letter, in lower case
	keys   map[podLabel][]podLabel // by the value
}

// nearLabels returns, in order, the labels in the namespace of a label that may be near it: with a
// value that differs by one letter, or the same value under another key.
func (c *cluster) nearLabels(label podLabel) []podLabel {
	if c.near == nil {
		c.near = &nearIndex{values: map[podLabel][]podLabel{}, keys: map[podLabel][]podLabel{}}
		for l := range c.byLabel {
			for variant := range variants(l.value) {
				index := podLabel{l.namespace, l.key, variant}
				c.near.values[index] = append(c.near.values[index], l)
			}
			index := podLabel{namespace: l.namespace, value: l.value}
			c.near.keys[index] = append(c.near.keys[index], l)
		}
	}
	found := slices.Clone(c.near.keys[podLabel{namespace: label.namespace, value: label.value}])
	for variant := range variants(label.value) {
		found = append(found, c.near.values[podLabel{label.namespace, label.key, variant}]...)
	}
	c.compared += len(found)
	slices.SortFunc(found, func(a, b podLabel) int {
		return cmp.Or(strings.Compare(a.key, b.key), strings.Compare(a.value, b.value))
	})
	return slices.Compact(found)
}

// variants yields a text in lower case, as a whole and without each of its letters. Two texts that
// differ by one letter, or by two that are swapped, have a variant in common.
func variants(text string) map[string]bool {
	text = strings.ToLower(text)
	all := map[string]bool{text: true}
	for i := range len(text) {
		all[text[:i]+text[i+1:]] = true
	}
	return all
}

// nearSubject guesses what the subject of a policy was meant to be: no pods that another policy
// selects by their name.
func (c *cluster) nearSubject(p *compiled) hint {
	return c.nearTo(p.Subject, func(key, value string) bool {
		return slices.ContainsFunc(c.requiring[podLabel{p.Ref.Namespace, key, value}], func(o *compiled) bool { return o != p })
	})
}

// nearPeer guesses what the i-th peer of a rule was meant to be: no pods that another item names.
func (c *cluster) nearPeer(r *policy.Rule, i int) hint {
	return c.nearTo(r.Peers[i].Pods, func(key, value string) bool {
		return slices.ContainsFunc(r.Peers, func(o policy.Peer) bool {
			if o.Pods == nil {
				return false
			}
			named, ok := o.Pods.Pods.RequiresExactMatch(key)
			return ok && named == value
		})
	})
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
