package main

import (
	"fmt"

	"sigs.k8s.io/kube-network-policies/pkg/reachability"
)

// ifEnforced returns c as if its audited policies were enforced, c itself if none is.
func ifEnforced(c *reachability.Cluster) *reachability.Cluster {
	if enforced := c.IfEnforced(); enforced != nil {
		return enforced
	}
	return c
}

// matrixIfEnforced returns what would change if the audited policies of c were enforced.
func (m *matrixOptions) matrixIfEnforced(c *reachability.Cluster, port reachability.Port, family reachability.Family) ([]reachability.Change, error) {
	enforced := c.IfEnforced()
	if enforced == nil {
		return nil, nil
	}
	spans := []reachability.PortRange{reachability.PortRangeOf(port)}
	if port == (reachability.Port{}) {
		spans = reachability.PortRanges(c, enforced)
	}
	d, err := reachability.Compare(c, enforced, spans, reachability.ExternalAddresses(c, enforced), family, m.namespaces()...)
	return d.Changes, err
}

// diffIfEnforced returns what would change between the clusters if audited policies of both
// were enforced, nil if there are none.
func (d *diffOptions) diffIfEnforced(before, after *reachability.Cluster) ([]reachability.Change, error) {
	if before.IfEnforced() == nil && after.IfEnforced() == nil {
		return nil, nil
	}
	difference, err := d.compare(ifEnforced(before), ifEnforced(after))
	return difference.Changes, err
}

// ifEnforcedLines say for people what audited policies would change, a line each.
func ifEnforcedLines(changes []reachability.Change) []string {
	var lines []string
	for i := range changes {
		for _, l := range changeLines(&changes[i]) {
			lines = append(lines, fmt.Sprintf("If audited policies were enforced, %s %s: %s -> %s", join(changes[i].Traffic), l.what, shorten(l.from), shorten(l.to)))
		}
	}
	return lines
}
