#!/usr/bin/env bash
# traces.sh NODE: prints what of a node's kernel an agent could leave behind: tables of
# nftables but those of kube-proxy and the CNI plugins, with their content, settings,
# rules and files.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
node=$1

in_node "$node" nft list tables | sed -E '/ (kube-proxy|nat|filter|mangle)$/d' | while read -r table family name; do
	in_node "$node" nft list table "$family" "$name" </dev/null
done
# Interfaces come and go with pods.
in_node "$node" sysctl -a 2>/dev/null | grep -E '^net\.' |
	grep -vE '^net\.ipv[46]\.(conf|neigh)\.(veth|cni)|nf_conntrack_count|\.(mtu|min_adv_mss|use_tempaddr)|route\.|fib_|stable_secret|rt_cache'
in_node "$node" ip rule
in_node "$node" ip -6 rule
in_node "$node" find /var/lib/kube-network-policies -mindepth 1
