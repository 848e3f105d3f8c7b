#!/usr/bin/env bash
# pod-network.sh NODE: configures the CNI plugin of a node with the node's pod ranges,
# and adds routes to them on the control plane and the other nodes.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
settings
node=$1

ranges=() routes=()
for range in $(kubectl get node "$node" -o jsonpath='{.spec.podCIDRs[*]}'); do
	ranges+=("[{\"subnet\": \"$range\"}]")
	if [[ $range == *:* ]]; then
		routes+=('{"dst": "::/0"}') gateway=$(node6 "$node")
	else
		routes+=('{"dst": "0.0.0.0/0"}') gateway=$(node4 "$node")
	fi
	for other in cp $nodes; do
		[[ $other == "$node" ]] || ip -n "$prefix-$other" route replace "$range" via "$gateway"
	done
done
[[ ${#ranges[@]} -gt 0 ]] || exit 1
list() { local IFS=,; echo "[$*]"; }

plugin='"type": "ptp"'
if [[ $CNI == bridge ]]; then
	plugin='"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true'
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
