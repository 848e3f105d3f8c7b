package main

import (
	"fmt"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
)

// ifEnforced returns c with its audited policies enforced, or c itself if none is audited.
func ifEnforced(c *reachability.Cluster) *reachability.Cluster {
	if enforced := c.IfEnforced(); enforced != nil {
		return enforced
	}
	return c
}

// matrixIfEnforced returns the changes if the audited policies of c were enforced.
func (m *matrixOptions) matrixIfEnforced(c *reachability.Cluster, port reachability.Port, family reachability.Family) ([]reachability.Change, error) {
	enforced := c.IfEnforced()
	if enforced == nil {
		return nil, nil
	}
	spans := []reachability.PortRange{reachability.PortRangeOf(port)}
	if port == (reachability.Port{}) {
		spans = reachability.PortRanges(c, enforced)
	}
	translated := m.services.translated()
	names := reachability.Names{Pod: workloadOf, Addresses: reachability.ExternalRanges(translated, c, enforced)}
	d, err := reachability.Compare(names, c, enforced, spans, reachability.ExternalAddresses(translated, c, enforced), family, m.namespaces()...)
	return d.Changes, err
}

// diffIfEnforced returns the changes between the clusters if the audited policies of both
// were enforced, or nil if no policy is audited.
func (d *diffOptions) diffIfEnforced(before, after *reachability.Cluster) ([]reachability.Change, error) {
	if before.IfEnforced() == nil && after.IfEnforced() == nil {
		return nil, nil
	}
	difference, err := d.compare(ifEnforced(before), ifEnforced(after))
	return difference.Changes, err
}

// ifEnforcedLines describes the changes by audited policies, one per line.
func ifEnforcedLines(changes []reachability.Change) []string {
	var lines []string
	for i := range changes {
		for _, l := range changeLines(&changes[i]) {
			line := fmt.Sprintf("If audited policies were enforced, %s %s: %s -> %s", join(changes[i].Traffic), l.what, shorten(l.from), shorten(l.to))
			if len(l.by) > 0 {
				line += ", by " + shorten(l.by)
			}
			lines = append(lines, line)
		}
	}
	return lines
}
