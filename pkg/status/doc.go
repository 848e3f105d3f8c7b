// Package status tells the authors of policies what the implementation makes of
// them: findings become conditions, which one writer stores on the policy.
//
// It owns the conditions, the ways to store them (a Sink each) and when to
// write: once for each generation of a spec, never faster than told, and never
// when nothing has changed. What a field means and whether it can be honoured is
// not decided here: a Kind brings a function that knows. It does not know
// packets, nodes or nftables; what goes wrong on one node is no condition.
package status
