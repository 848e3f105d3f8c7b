// Package status reports to the authors of policies which parts of a policy are
// not enforced as written: findings become conditions, which one writer stores on
// the policy.
//
// It owns the conditions, the ways to store them (one Sink each) and when to
// write: once for each generation of a spec, within a rate limit, and never while
// nothing changes. It does not decide what a field means or whether it is
// supported: each Kind brings a Diagnose function that does. It does not know
// packets, nodes or nftables; a failure on a single node is not a condition.
package status
