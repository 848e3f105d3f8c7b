package nodecheck

import (
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
)

// comparison compares facts with the previous ones. Except for OwnNode it reports a problem only
// if it finds it twice in a row: for a while a terminating pod may have an address without an
// interface, or one that already belongs to another pod, and packets may be on their way to a
// queue.
type comparison struct {
	previous module.Facts
	suspects []Problem // found the last time
	problems []Problem
}

// checkOwnNodeAgain returns the problems after checking only those of the agent's own Node again.
func (c *comparison) checkOwnNodeAgain(now module.Facts) []Problem {
	rest := slices.DeleteFunc(slices.Clone(c.problems), func(p Problem) bool { return p.Cause == OwnNode })
	return append(checkOwnNode(now), rest...)
}

// check checks all facts and returns the problems.
func (c *comparison) check(now module.Facts) []Problem {
	var suspects []Problem
	if len(now.Pods) > 0 {
		suspects = append(suspects, checkLinks(now)...)
		suspects = append(suspects, checkRanges(now)...)
	}
	suspects = append(suspects, checkConflicts(now)...)
	suspects = append(suspects, c.checkQueue(now)...)
	problems := checkOwnNode(now)
	for _, p := range suspects {
		if c.suspected(p.Cause) {
			problems = append(problems, p)
		}
	}
	c.previous, c.suspects = now, suspects
	return problems
}

func (c *comparison) suspected(cause Cause) bool {
	return slices.ContainsFunc(c.suspects, func(p Problem) bool { return p.Cause == cause })
}

func checkOwnNode(now module.Facts) []Problem {
	if now.OwnNode == nil {
		return nil
	}
	return []Problem{{OwnNode, now.OwnNode.Error()}}
}

func checkLinks(now module.Facts) []Problem {
	if !now.Unlinked {
		return nil
	}
	return []Problem{{PodInterface, "no route"}}
}

func checkRanges(now module.Facts) []Problem {
	within := func(a netip.Addr) bool {
		return slices.ContainsFunc(now.Ranges, func(r netip.Prefix) bool { return r.Contains(a) })
	}
	if len(now.Ranges) == 0 || now.Sandboxed || slices.ContainsFunc(now.Pods, within) {
		return nil
	}
	return []Problem{{PodRanges, fmt.Sprint("podCIDRs ", now.Ranges)}}
}

func checkConflicts(now module.Facts) []Problem {
	if now.Conflicts == 0 {
		return nil
	}
	return []Problem{{Addresses, "netpol_address_conflicts"}}
}

// checkQueue suspects the queues if packets were sent to them and none arrived, until one does.
func (c *comparison) checkQueue(now module.Facts) []Problem {
	grown := now.Steered > c.previous.Steered || c.suspected(Queue)
	if !now.Holds || !c.previous.Holds || now.Received != c.previous.Received || !grown {
		return nil
	}
	return []Problem{{Queue, "netpol_steered_packets_total grows and no queue receives a packet"}}
}
