package denials

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// turns returns the policies that are due, in the order in which they get a text. said are the
// policies that each agent has named. Agents take turns, and so do the namespaces of each
// agent, so that an agent or a namespace with many policies does not delay others.
func (c *Collector) turns(due map[Policy]bool, said map[types.UID][]Policy) []Policy {
	turn := make(map[Policy]int)
	for _, policies := range said {
		for i, p := range c.perNamespace(policies, due) {
			if before, has := turn[p]; !has || i < before {
				turn[p] = i
			}
		}
	}
	all := make([]Policy, 0, len(turn))
	for p := range turn {
		all = append(all, p)
	}
	byTurn := func(a, b Policy) int { return cmp.Or(cmp.Compare(turn[a], turn[b]), c.byWait(a, b)) }
	slices.SortFunc(all, byTurn)
	of := make(map[string]int)
	for _, p := range all {
		turn[p] = max(turn[p], of[p.Namespace])
		of[p.Namespace]++
	}
	slices.SortFunc(all, byTurn)
	return all
}

// perNamespace returns the due policies: one of each namespace, then the next of each, and so
// on.
func (c *Collector) perNamespace(policies []Policy, due map[Policy]bool) []Policy {
	policies = slices.DeleteFunc(slices.Clone(policies), func(p Policy) bool { return !due[p] })
	slices.SortFunc(policies, c.byWait)
	turn, of := make(map[Policy]int), make(map[string]int)
	for _, p := range policies {
		turn[p] = of[p.Namespace]
		of[p.Namespace]++
	}
	slices.SortStableFunc(policies, func(a, b Policy) int { return cmp.Compare(turn[a], turn[b]) })
	return policies
}

// byWait orders policies without a text first, then by age of the text, the oldest first.
func (c *Collector) byWait(a, b Policy) int {
	return cmp.Or(c.reports[a].since.Compare(c.reports[b].since), byName(a, b))
}
