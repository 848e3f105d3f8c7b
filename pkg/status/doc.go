// Package status reports to the authors of policies which parts of a policy are
// not enforced as written: findings become conditions, which one writer stores on
// the policy.
//
// It decides on conditions, how to store them (one Sink per way) and when to write: once for
// each generation of a spec, within a rate limit, and never while nothing changes. The
// Diagnose function of each Kind decides what fields mean and whether they are supported. The
// package does not know packets, nodes or nftables; a failure on a single node is not a
// condition.
package status
