#!/usr/bin/env bash
# node.sh NODE: the first process of a node, in the node's own network, mount, pid,
# uts and ipc namespaces. Everything in the node ends with it.
set -euo pipefail
node=$1
. "$(dirname "$0")/lib.sh"
settings
mine=$state/$node
log=$mine/log
hostname "$node"
mount --make-rprivate /

# /sys of this network namespace, with the cgroups that the old one had.
mkdir -p "$mine/cgroup"
mount --rbind /sys/fs/cgroup "$mine/cgroup"
mount -t sysfs sysfs /sys
mount --rbind "$mine/cgroup" /sys/fs/cgroup
umount -l "$mine/cgroup"

# The kubelet sets some values of the whole machine. It is given copies of them.
mkdir -p "$mine/sysctl"
for setting in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
	copy=$mine/sysctl/${setting//\//_}
	cat "/proc/sys/$setting" >"$copy"
	mount --bind "$copy" "/proc/sys/$setting"
done

# Folders whose paths are fixed are the node's own.
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/lock /run/netns
for folder in $(<"$state/folders"); do
	mkdir -p "$mine/rootfs$folder"
	mount --bind "$mine/rootfs$folder" "$folder"
done
mount --make-rshared /

# keep NAME COMMAND…: starts a program, and again whenever it ends.
keep() {
	local name=$1 status
	shift
	while :; do
		status=0
		"$@" >>"$log/$name.log" 2>&1 || status=$?
		echo "=== ended with status $status, starting again" >>"$log/$name.log"
		sleep 1
	done &
}

keep containerd containerd --config "$mine/containerd.toml"
within 60 "containerd of $node" ctr version
for image in "$(<"$state/images")"/*.tar; do
	ctr -n k8s.io images import "$image" >>"$log/images.log" 2>&1
done
keep kubelet "$(program kubelet)" --config "$mine/kubelet.yaml" --kubeconfig "$state/$node.conf" \
	--hostname-override "$node" --node-ip "$(of_families node "$node")" --v 1
keep kube-proxy "$(program kube-proxy)" --config "$mine/kube-proxy.yaml" --hostname-override "$node" --v 1
if [[ $CNI == flannel* ]]; then
	for family in ip ip6; do echo 1 >/proc/sys/net/bridge/bridge-nf-call-${family}tables; done
	NODE_NAME=$node keep flanneld "$(program flanneld)" --kube-subnet-mgr --kubeconfig-file "$state/admin.conf" \
		--net-config-path "$mine/flannel.json" --subnet-file "$mine/subnet.env" --iface eth0 --ip-masq
fi
while :; do wait -n || sleep 1; done
