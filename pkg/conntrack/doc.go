// Package conntrack cuts established connections and lets them go on: it reads
// the kernel's table of connections, asks of each whether its first packet would
// still pass, and tells the kernel by one bit of the connection's mark. It knows
// packets, connections and which addresses are the node's own; it does not know
// policies, nor the rule that drops what has the bit.
//
// An entry is marked and never deleted. Without its entry, the next packet of
// either end would be the first packet of a connection, of the opposite one half
// of the time, and that one may be allowed: the old connection would live on.
package conntrack
