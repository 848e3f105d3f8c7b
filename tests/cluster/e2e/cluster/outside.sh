#!/usr/bin/env bash
# outside.sh ADDRESSES PROGRAM [ARGUMENT…]: runs a program on a host outside the cluster, which has
# these addresses, separated by commas: a network namespace whose packets the control plane
# routes. It is made if it is missing, and ends with the cluster.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
IFS=, read -ra addresses <<<"$1"
shift
cp=$prefix-cp
ns=$prefix-outside-${addresses[0]}
link=out-$(cksum <<<"${addresses[0]}" | cut -d ' ' -f 1) # 14 characters at most: 15 is the limit

exec 9>"$state/outside.lock" && flock 9 # several programs start at once
if [[ ! -e /run/netns/$ns ]]; then
	ip netns add "$ns"
	ip -n "$ns" link set lo up
	nsenter --net="/run/netns/$ns" -- sh -c 'echo "0 2147483647" >/proc/sys/net/ipv4/ping_group_range'
	ip -n "$cp" link add "$link" type veth peer name eth0 netns "$ns"
	ip -n "$cp" addr add fe80::1/64 dev "$link" nodad
	ip -n "$cp" link set "$link" up
	ip -n "$ns" link set eth0 up
	ip -n "$ns" route add 10.88.0.1 dev eth0
	ip -n "$ns" route add default via 10.88.0.1
	ip -n "$ns" -6 route add default via fe80::1 dev eth0
	for address in "${addresses[@]}"; do
		if [[ $address == *:* ]]; then
			ip -n "$ns" addr add "$address/128" dev eth0 nodad
		else
			ip -n "$ns" addr add "$address/32" dev eth0
		fi
		ip -n "$cp" route replace "$address" dev "$link"
	done
fi
flock -u 9
exec nsenter --net="/run/netns/$ns" -- "$@" 9>&-
