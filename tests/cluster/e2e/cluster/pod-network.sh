#!/usr/bin/env bash
# pod-network.sh NODE: configures the CNI plugin of a node with the node's pod subnets,
# and adds routes to them on the control plane and the other nodes.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
settings
node=$1

list() { local IFS=,; echo "[$*]"; }

# alternatives SUBNET…: the ranges of one address family. host-local takes every address of a range
# before it goes on with the next: with ranges of one address, of each subnet in turn, the pods of a
# node are in both subnets at once. There are 252 addresses, for 250 pods.
alternatives() {
	local subnet address host all=()
	if (($# == 1)); then
		list "{\"subnet\": \"$1\"}"
		return
	fi
	for ((host = 2; host < 128; host++)); do
		for subnet; do
			if [[ $subnet == *:* ]]; then
				printf -v address %s%x "${subnet%/64}" "$host"
			else
				address=${subnet%0/24}$host
			fi
			all+=("{\"subnet\": \"$subnet\", \"rangeStart\": \"$address\", \"rangeEnd\": \"$address\"}")
		done
	done
	list "${all[@]}"
}

# bridge_in SUBNET: gives the bridge of the node the address of the subnet's gateway, the first one.
# The plugin can do so for one subnet of IPv4 only.
bridge_in() {
	local ns=$prefix-$node
	ip -n "$ns" link show cni0 >/dev/null 2>&1 || ip -n "$ns" link add cni0 type bridge
	# Without one of its own it has that of a pod's link, and another one when the pod has gone.
	ip -n "$ns" link set cni0 address 0a:58:0a:58:00:01 up
	if [[ $1 == *:* ]]; then
		ip -n "$ns" addr replace "${1/::/::1}" dev cni0 nodad
	else
		ip -n "$ns" addr replace "${1/%.0\/24/.1/24}" dev cni0
	fi
}

mtu=
if [[ $CNI == flannel* ]]; then # its daemon says which subnet the node has, and makes the routes to others
	. "$state/$node/subnet.env"
	mtu=", \"mtu\": $FLANNEL_MTU"
fi
firsts=$(kubectl get node "$node" -o jsonpath='{.spec.podCIDRs[*]}')
ranges=() routes=()
for range in $firsts; do
	if [[ $range == *:* ]]; then
		routes+=('{"dst": "::/0"}') gateway=$(node6 "$node") second=$(second6 "$node")
	else
		routes+=('{"dst": "0.0.0.0/0"}') gateway=$(node4 "$node") second=$(second4 "$node")
	fi
	subnets=("$range")
	[[ $SUBNETS == 1 ]] || subnets+=("$second")
	ranges+=("$(alternatives "${subnets[@]}")")
	for subnet in "${subnets[@]}"; do
		[[ $CNI != bridge || $SUBNETS == 1 ]] || bridge_in "$subnet"
		for other in cp $nodes; do
			[[ $other == "$node" || $other != cp && $CNI == flannel* ]] || ip -n "$prefix-$other" route replace "$subnet" via "$gateway"
		done
	done
done
[[ ${#ranges[@]} -gt 0 ]] || exit 1

plugin='"type": "ptp"'
if [[ $CNI != ptp ]]; then
	plugin="\"type\": \"bridge\", \"bridge\": \"cni0\", \"isGateway\": $( ((SUBNETS == 1)) && echo true || echo false), \"hairpinMode\": true$mtu"
	# Services between pods of one bridge depend on it, and so do policies.
	nsenter --net="/run/netns/$prefix-$node" -- \
		sh -c 'for family in ip ip6; do echo 1 >/proc/sys/net/bridge/bridge-nf-call-${family}tables; done'
fi
folder=$state/$node/rootfs/etc/cni/net.d
[[ ! -e $folder/10-cluster.conflist ]] || exit 0
# containerd sees a file that is renamed within the folder.
cat >"$folder/.new" <<JSON
{"cniVersion": "0.4.0", "name": "cluster", "plugins": [
  {$plugin, "ipMasq": false, "ipam": {"type": "host-local", "ranges": $(list "${ranges[@]}"), "routes": $(list "${routes[@]}")}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
JSON
mv "$folder/.new" "$folder/10-cluster.conflist"
