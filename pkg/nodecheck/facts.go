package nodecheck

import (
	"fmt"
	"net/netip"
	"slices"
)

// Facts are what an agent knows of its node. Each part may be right by itself, and nothing be
// enforced because they do not fit together.
type Facts struct {
	// OwnNode is why the pods of the agent's node name may not be those of this machine.
	OwnNode error
	// Pods are the addresses of the node's pods.
	Pods []netip.Addr
	// Sandboxed is set if the CNI cache has an address of Pods: those of new pods are known
	// before the pods run, whatever the ranges are.
	Sandboxed bool
	// Ranges are those that the Node has for the addresses of its pods.
	Ranges []netip.Prefix
	// Conflicts is how many addresses statuses of pods and nodes claim that are another's.
	Conflicts int
	// Unlinked is set if interfaces and routes are known, and no interface leads to a pod.
	Unlinked bool
	// Holds is set while the agent holds the table and knows the counts: Steered is how many
	// packets the table has sent to queues, and Received how many the agent's queues got.
	Holds             bool
	Steered, Received uint64
}

// comparison compares Facts with those of the look before. All but OwnNode must be wrong at
// two looks: a pod that ends has an address for a while without an interface, or one that another
// pod has by now, and packets may be on their way to a queue.
type comparison struct {
	before   Facts
	suspects []Problem // of the look before
	problems []Problem
}

// pokedBy returns the problems, of which only those of the own Node are looked at.
func (c *comparison) pokedBy(now Facts) []Problem {
	others := slices.DeleteFunc(slices.Clone(c.problems), func(p Problem) bool { return p.Cause == OwnNode })
	return append(checkOwnNode(now), others...)
}

// lookAt returns the problems at a look.
func (c *comparison) lookAt(now Facts) []Problem {
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
	c.before, c.suspects = now, suspects
	return problems
}

func (c *comparison) suspected(cause Cause) bool {
	return slices.ContainsFunc(c.suspects, func(p Problem) bool { return p.Cause == cause })
}

func checkOwnNode(now Facts) []Problem {
	if now.OwnNode == nil {
		return nil
	}
	return []Problem{{Cause: OwnNode, Message: "The pods of the agent's node name are not known to be those of this machine", Found: now.OwnNode.Error()}}
}

func checkLinks(now Facts) []Problem {
	if !now.Unlinked {
		return nil
	}
	return []Problem{{Cause: PodInterface, Message: "No interface of this node leads to any of its pods: if they are connected past the node's network (macvlan, ipvlan, SR-IOV), policies are not enforced for them", Found: "no route"}}
}

func checkRanges(now Facts) []Problem {
	within := func(a netip.Addr) bool {
		return slices.ContainsFunc(now.Ranges, func(r netip.Prefix) bool { return r.Contains(a) })
	}
	if len(now.Ranges) == 0 || now.Sandboxed || slices.ContainsFunc(now.Pods, within) {
		return nil
	}
	return []Problem{{Cause: PodRanges, Message: "No pod of this node has an address in the ranges of its Node: what a new pod sends and receives before its address is known passes", Found: fmt.Sprint("podCIDRs ", now.Ranges)}}
}

func checkConflicts(now Facts) []Problem {
	if now.Conflicts == 0 {
		return nil
	}
	return []Problem{{Cause: Addresses, Message: "Statuses of pods or nodes claim addresses that are another's, which they do not get here", Found: "netpol_address_conflicts"}}
}

// checkQueue suspects the queues if packets were sent to them and they received none, until
// they receive one.
func (c *comparison) checkQueue(now Facts) []Problem {
	grown := now.Steered > c.before.Steered || c.suspected(Queue)
	if !now.Holds || !c.before.Holds || now.Received != c.before.Received || !grown {
		return nil
	}
	return []Problem{{Cause: Queue, Message: "Packets that the table sends to the agent's queues do not reach them", Found: "netpol_steered_packets_total grows and no queue receives a packet"}}
}
