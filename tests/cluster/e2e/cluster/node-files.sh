#!/usr/bin/env bash
# node-files.sh NODE: writes the configuration of the programs of a node.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
settings
node=$1
mine=$state/$node
mkdir -p "$mine/log" "$mine/rootfs/opt/cni/bin" "$mine/rootfs/etc/cni/net.d"
cp -u /usr/lib/cni/* "$mine/rootfs/opt/cni/bin/"

# put FILE writes what it reads, only where that differs: kube-proxy ends when its
# file is written.
put() {
	cat >"$1.new"
	if cmp -s "$1.new" "$1"; then rm "$1.new"; else mv "$1.new" "$1"; fi
}

put "$mine/containerd.toml" <<TOML
version = 2
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.internal.v1.opt"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$(<"$(<"$state/images")/pause.name")"
  disable_apparmor = true
  # Root in a container may lack the right to protect what it starts.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
TOML

put "$mine/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $state/pki/ca.crt}}
authorization: {mode: Webhook}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /$prefix-$node
failCgroupV1: false
enforceNodeAllocatable: []
failSwapOn: false
clusterDomain: cluster.local
clusterDNS: [$(sed 's/[^,]*/"&"/g' <<<"$dns")]
resolvConf: ""
# Images are never pulled: none may be removed for lack of space.
evictionHard: {memory.available: 100Mi, imagefs.available: "0%", nodefs.available: "0%", nodefs.inodesFree: "0%"}
imageGCHighThresholdPercent: 100
imageMaximumGCAge: 0s
maxPods: 250
volumePluginDir: /var/lib/kubelet/volumeplugins
YAML

if [[ $CNI == flannel* ]]; then
	backend=host-gw
	[[ $CNI != *-vxlan ]] || backend=vxlan
	networks=
	for range in ${pods//,/ }; do
		if [[ $range == *:* ]]; then
			networks+="\"EnableIPv6\": true, \"IPv6Network\": \"$range\", "
		else
			networks+="\"Network\": \"$range\", "
		fi
	done
	[[ $networks == *'"Network"'* ]] || networks+='"EnableIPv4": false, '
	put "$mine/flannel.json" <<<"{$networks\"Backend\": {\"Type\": \"$backend\"}}"
fi

# The limits of connection tracking belong to the machine.
put "$mine/kube-proxy.yaml" <<YAML
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: $PROXY
clientConnection: {kubeconfig: $state/kube-proxy.conf}
clusterCIDR: $unmasqueraded
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
YAML
