// Package conntrack changes the kernel's table of connections. A Blocker blocks
// established connections that policies no longer allow, and unblocks them when they
// allow them again: it has the first packet of each connection evaluated, and sets
// or clears one bit of the connection's mark. A Remover removes the entries of
// addresses that now belong to another pod, or to none. The package knows packets,
// connections and the node's own addresses; it does not know policies, nor the
// rules of the nftables table.
//
// The entry of a denied connection is marked and not deleted. Without its entry, the
// next packet of either end would open a new connection. If the server sends it, that
// connection has the opposite direction and may be allowed: the old connection would
// continue. The entry of a pod that is gone is deleted: no process continues it at
// that end, and what the other end still sends is evaluated by the policies of the
// address's new pod.
package conntrack
