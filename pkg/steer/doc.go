// Package steer owns the nftables table that sends packets to the agent's
// queues. It knows addresses, but no pods, no policies, and no reason why an address is
// in a set.
//
// The base chains are created once. Afterwards only set elements change: deleting a
// table or a base chain unregisters a hook, and then the kernel drops every packet that
// waits in any queue of the network namespace.
//
// docs/nftables.md shows the table as nft prints it and gives the reason for
// each hook, priority, rule and mark bit.
package steer
