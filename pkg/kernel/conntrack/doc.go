// Package conntrack changes the kernel's connection tracking table. A Blocker blocks
// established connections that policies no longer allow, and unblocks them when policies
// allow them again: it evaluates the first packet of each connection, and sets or clears
// one bit of the connection's mark. A Remover removes the entries of addresses that now
// belong to another pod or to none. The package knows packets, connections and the node's
// own addresses; it does not know policies or the rules of the nftables table.
//
// The entry of a denied connection is marked, not deleted. Without its entry, the next
// packet from either end would open a new connection. If the server sends that packet, the
// new connection has the opposite direction and may be allowed, so the old connection would
// continue. The entries of a deleted pod are deleted: no process continues them at that
// end, and packets from the other end are evaluated by the policies of the address's new
// pod.
package conntrack
