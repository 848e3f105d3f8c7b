// Package steer owns the nftables table that sends packets to the agent's queues. It knows
// addresses, but not pods, policies or the reason why an address is in a set.
//
// The base chains are created once, and afterwards only set elements change. Deleting a table or a
// base chain unregisters a hook, and the kernel then drops the packets in all queues of the network
// namespace.
//
// docs/nftables.md explains hooks, priorities and each chain, and shows the chains on the way of most
// packets as nft prints them. The reasons for single rules are here.
package steer
