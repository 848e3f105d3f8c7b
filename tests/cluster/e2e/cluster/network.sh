#!/usr/bin/env bash
# network.sh: makes what is missing of the network namespaces, one for the control
# plane and one for each node, and of the bridge that connects them. The machine's
# own namespace gets no interface, address or route.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

namespace() {
	[[ -e /run/netns/$1 ]] || ip netns add "$1"
	ip -n "$1" link set lo up
	nsenter --net="/run/netns/$1" -- sh -c '
		for name in ipv4/ip_forward ipv6/conf/all/forwarding ipv6/conf/default/forwarding; do echo 1 >/proc/sys/net/$name; done
		for name in ipv6/conf/all/accept_dad ipv6/conf/default/accept_dad ipv4/conf/all/rp_filter ipv4/conf/default/rp_filter; do
			echo 0 >/proc/sys/net/$name
		done'
}

cp=$prefix-cp
namespace "$cp"
if ! ip -n "$cp" link show br0 >/dev/null 2>&1; then
	ip -n "$cp" link add br0 type bridge
	ip -n "$cp" link set br0 up
fi
ip -n "$cp" addr replace 10.88.0.1/24 dev br0
ip -n "$cp" addr replace fd00:88::1/64 dev br0 nodad

for node in $nodes; do
	ns=$prefix-$node
	namespace "$ns"
	if ! ip -n "$ns" link show eth0 >/dev/null 2>&1; then
		ip -n "$cp" link add "$node" type veth peer name eth0 netns "$ns"
		ip -n "$cp" link set "$node" master br0 up
	fi
	ip -n "$ns" link set eth0 up
	ip -n "$ns" addr replace "$(node4 "$node")/24" dev eth0
	ip -n "$ns" addr replace "$(node6 "$node")/64" dev eth0 nodad
	ip -n "$ns" route replace default via 10.88.0.1
	ip -n "$ns" -6 route replace default via fd00:88::1
done
