#!/usr/bin/env bash
# up.sh: brings the cluster up. What is up stays as it is; what is missing is started.
# A cluster that does not come up is taken down again, its logs are kept.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
[[ $EUID -eq 0 ]] || die "a cluster needs root"
settings
[[ $PROXY != ipvs ]] || has_ipvs || die "PROXY=ipvs: this kernel has no IPVS (the module ip_vs)"
[[ $CNI != flannel* || $SUBNETS == 1 ]] || die "CNI=$CNI: flannel has one pod subnet for each node, so SUBNETS must be 1"
[[ $CNI != flannel-vxlan ]] || has_vxlan || die "CNI=flannel-vxlan: this kernel has no VXLAN (the module vxlan)"
manifest=${AGENT:-install.yaml} # of the repository, or none

new=
[[ -d $state ]] || new=1
mkdir -p "$state/log"
exec 9>"$state/lock"
flock -n 9 || die "another process brings the cluster up or down"
for name in "${parameters[@]}"; do echo "${!name}" >"$state/$name"; done

finish() {
	local status=$? failed=$state.failed
	trap - EXIT
	((status != 0)) && [[ -n $new ]] || exit "$status"
	rm -rf "$failed"
	mkdir "$failed"
	cp -r "$state/log" "$failed/control-plane"
	for node in $nodes; do cp -r "$state/$node/log" "$failed/$node" 2>/dev/null || true; done
	echo "The cluster did not come up. Its logs are in $failed." >&2
	exec 9>&-
	KEEP_LOGS=1 "$here/down.sh" || true
	exit "$status"
}
trap finish EXIT
trap 'exit 130' INT TERM

# --- programs and images

"$here/packages.sh"
(cd "$root/tests/cluster/integration" && go run ./servers/build "$KUBERNETES" etcd coredns) >"$state/programs.new"
mv "$state/programs.new" "$state/programs"
# By what they are made of.
made_by=$(has_sctp && echo sctp; sed "s|.*/||" "$state/programs"; cat "$here"/image{,s}.sh "$here"/{pause,agnhost}/*.go | sha256sum | cut -c 1-8)
images=$cache/images/$(basename "$(head -n 1 "$state/programs")")-$made_by
"$here/images.sh" "$images"
echo "$images" >"$state/images"
[[ $CNI != flannel* ]] || (cd "$root/tests/cluster/integration" && go run ./servers/build flannel) >>"$state/programs"
started=$SECONDS

# --- control plane

"$here/network.sh"
"$here/pki.sh"
pki=$state/pki

# start NAME FLAGS…: starts a program, unless it runs.
start() {
	local name=$1
	shift
	! running "$state/$name.pid" >/dev/null || return 0
	setsid nsenter --net="/run/netns/$prefix-cp" -- "$(program "$name")" "$@" </dev/null >>"$state/log/$name.log" 2>&1 9>&- &
	remember $! "$state/$name.pid"
	disown
}
client() { echo "--kubeconfig=$state/$1.conf --authentication-kubeconfig=$state/$1.conf --authorization-kubeconfig=$state/$1.conf"; }

start_etcd() {
	local url=http://127.0.0.1
	start etcd --data-dir "$state/etcd" --unsafe-no-fsync --log-level warn \
		--listen-client-urls $url:2379 --advertise-client-urls $url:2379 --listen-peer-urls $url:2380
}
start_apiserver() {
	start kube-apiserver --etcd-servers http://127.0.0.1:2379 --advertise-address "$api" --bind-address :: --secure-port 6443 \
		--service-cluster-ip-range "$services" --allow-privileged --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction \
		--client-ca-file "$pki/ca.crt" --tls-cert-file "$pki/apiserver.crt" --tls-private-key-file "$pki/apiserver.key" \
		--kubelet-client-certificate "$pki/apiserver-kubelet-client.crt" --kubelet-client-key "$pki/apiserver-kubelet-client.key" \
		--kubelet-preferred-address-types InternalIP \
		--service-account-key-file "$pki/sa.pub" --service-account-signing-key-file "$pki/sa.key" \
		--service-account-issuer https://kubernetes.default.svc.cluster.local \
		--requestheader-client-ca-file "$pki/ca.crt" --requestheader-allowed-names front-proxy-client \
		--requestheader-username-headers X-Remote-User --requestheader-group-headers X-Remote-Group \
		--requestheader-extra-headers-prefix X-Remote-Extra- \
		--proxy-client-cert-file "$pki/front-proxy-client.crt" --proxy-client-key-file "$pki/front-proxy-client.key"
}
# One that was just killed may still count as running: it is looked for every time.
api_ready() {
	start_etcd
	start_apiserver
	[[ $(kubectl get --raw /readyz --request-timeout 2s) == ok ]]
}
within 120 "the API server" api_ready
say "API server ready after $((SECONDS - started)) s"
start kube-controller-manager $(client kube-controller-manager) --leader-elect=false \
	--allocate-node-cidrs=true --cluster-cidr "$pods" --service-cluster-ip-range "$services" --root-ca-file "$pki/ca.crt" \
	--service-account-private-key-file "$pki/sa.key" --use-service-account-credentials \
	--cluster-signing-cert-file "$pki/ca.crt" --cluster-signing-key-file "$pki/ca.key"
start kube-scheduler $(client kube-scheduler) --leader-elect=false

# --- nodes

# The nodes have folders of their own where these are. They are removed again.
fixed="/var/lib/kubelet /var/lib/containerd /var/lib/cni /var/lib/kube-network-policies /var/log/pods /var/log/containers /etc/cni/net.d /opt/cni/bin"
echo "$fixed" >"$state/folders"
for folder in $fixed; do
	path=
	for part in ${folder//\// }; do
		path+=/$part
		[[ -d $path ]] || { echo "$path" >>"$state/made" && mkdir "$path"; }
	done
done

start_node() {
	local node=$1 hierarchy
	"$here/node-files.sh" "$node"
	for hierarchy in $(hierarchies); do mkdir -p "$hierarchy/$prefix-$node"; done
	local cpuset=/sys/fs/cgroup/cpuset
	if [[ -d $cpuset ]]; then
		for name in cpuset.cpus cpuset.mems; do cat "$cpuset/$name" >"$cpuset/$prefix-$node/$name"; done
	fi
	! node_init "$node" >/dev/null || return 0
	setsid nsenter --net="/run/netns/$prefix-$node" -- unshare --mount --uts --ipc --pid --fork --kill-child --mount-proc \
		"$here/node.sh" "$node" </dev/null >>"$state/$node/log/node.log" 2>&1 9>&- &
	remember $! "$state/$node/pid"
	disown
}
# Ready, and without the taint, which goes later.
nodes_ready() {
	[[ $(kubectl get nodes -o json | jq '[.items[] | select(.spec.taints == null) | .status.conditions[] |
		select(.type == "Ready" and .status == "True")] | length') == "$(wc -w <<<"$nodes")" ]]
}
for node in $nodes; do start_node "$node"; done
for node in $nodes; do within 120 "addresses for the pods of $node" "$here/pod-network.sh" "$node"; done
within 120 "nodes ready" nodes_ready
say "nodes ready after $((SECONDS - started)) s"

# --- what runs in it

sed -e "s|IMAGE|$(<"$images/coredns.name")|" -e "s|FIRST|\"${dns%,*}\"|" -e "s|\[ALL\]|[$(sed 's/[^,]*/"&"/g' <<<"$dns")]|" \
	"$here/dns.yaml" | kubectl apply -f - >/dev/null
# What the nodes are like before they have an agent.
for node in $nodes; do
	[[ ! -f $state/$node/traces ]] || continue
	"$here/traces.sh" "$node" >"$state/$node/traces.new"
	mv "$state/$node/traces.new" "$state/$node/traces"
done
[[ $manifest == none ]] || "$here/agent.sh" "$manifest"
kubectl -n kube-system rollout status deployment/coredns --timeout 120s >/dev/null
say "up after $((SECONDS - started)) s: Kubernetes $KUBERNETES, $FAMILY, kube-proxy $PROXY, CNI $CNI, pod subnets $SUBNETS, agent $manifest"
