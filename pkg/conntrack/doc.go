// Package conntrack changes the kernel's table of connections. A Blocker cuts
// established connections and lets them go on: it asks of each whether its first
// packet would still pass, and tells the kernel by one bit of the connection's mark.
// A Remover removes the entries of addresses that belong to another pod now, or to
// none. The package knows packets, connections and which addresses are the node's
// own; it does not know policies, nor the rules of the nftables table.
//
// An entry that policy denies is marked and not deleted. Without its entry, the next
// packet of either end would be the first packet of a connection, of the opposite
// one half of the time, and that one may be allowed: the old connection would live
// on. The entry of a pod that is gone is deleted: nobody goes on with it at that
// end, and what the other end still sends is to be judged by the policies of the
// address's new pod.
package conntrack
