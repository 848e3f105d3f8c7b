// Package steer owns the nftables table that sends packets to the agent's
// queues. It knows addresses and nothing else: no pod, no policy, no reason why
// an address is in a set.
//
// The base chains are made once. Afterwards only set elements come and go,
// because the kernel drops every packet that waits in any queue of the network
// namespace when it unregisters a hook, which is what deleting a table or a
// base chain does.
//
// docs/nftables.md shows the table as nft prints it and gives the reason for
// each hook, priority, rule and mark bit.
package steer
