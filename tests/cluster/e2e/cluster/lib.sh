# Settings of the cluster and the functions that the scripts here share. Sourced.
# docs/testing/cluster.md describes the parameters.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../../.." && pwd)
export PATH=$PATH:/usr/sbin:/sbin
export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -buildvcs=false"

# What was started, and where. A second cluster on the same machine needs other
# values for both.
state=${CLUSTER_STATE:-/var/lib/kube-network-policies-cluster}
prefix=${CLUSTER_PREFIX:-knp} # of network namespaces and cgroups
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kube-network-policies
nodes="n1 n2"

# A running cluster keeps the parameters that it was started with.
parameters=(KUBERNETES FAMILY PROXY CNI SUBNETS)
declare -A default=([KUBERNETES]=v1.35 [FAMILY]=dual [PROXY]=nftables [CNI]=ptp [SUBNETS]=1)
declare -A allowed=([KUBERNETES]="v1.35 v1.36 v1.37" [FAMILY]="ipv4 ipv6 dual dual6" [PROXY]="nftables iptables ipvs"
	[CNI]="ptp bridge flannel flannel-vxlan" [SUBNETS]="1 2")

settings() {
	local name value
	for name in "${parameters[@]}"; do
		value=${!name:-}
		if [[ -f $state/$name ]]; then
			[[ -z $value || $value == "$(<"$state/$name")" ]] ||
				die "the cluster is up with $name=$(<"$state/$name"), not $value: make cluster-down first"
			value=$(<"$state/$name")
		fi
		value=${value:-${default[$name]}}
		[[ " ${allowed[$name]} " == *" $value "* ]] || die "$name=$value: must be one of ${allowed[$name]}"
		printf -v "$name" %s "$value"
	done
	addresses
}

# The network between the nodes is 10.88.0.0/24 and fd00:88::/64. The control plane
# has .1, node n1 has .11 and n2 has .12.
addresses() {
	local pods4=10.244.0.0/16 pods6=fd00:10:244::/56
	local services4=10.96.0.0/16 services6=fd00:10:96::/112
	local dns4=10.96.0.10 dns6=fd00:10:96::a
	case $FAMILY in
	ipv4) pods=$pods4 services=$services4 dns=$dns4 api=10.88.0.1 ;;
	ipv6) pods=$pods6 services=$services6 dns=$dns6 api=fd00:88::1 ;;
	dual) pods=$pods4,$pods6 services=$services4,$services6 dns=$dns4,$dns6 api=10.88.0.1 ;;
	dual6) pods=$pods6,$pods4 services=$services6,$services4 dns=$dns6,$dns4 api=fd00:88::1 ;;
	esac
	# kube-proxy masquerades what comes from elsewhere to Services. Second subnets are not elsewhere.
	unmasqueraded=$pods
	[[ $SUBNETS == 1 ]] || unmasqueraded=$(sed 's|/16|/15|; s|/56|/55|' <<<"$pods")
	server=https://$api:6443
	[[ $api != *:* ]] || server=https://[$api]:6443
}

node4() { echo "10.88.0.1${1#n}"; }
node6() { echo "fd00:88::1${1#n}"; }
# The second subnets of a node's pods, outside of all spec.podCIDRs.
second4() { echo "10.245.${1#n}.0/24"; }
second6() { echo "fd00:10:244:10${1#n}::/64"; }
# of_families WHAT NODE: WHAT4 and WHAT6 of a node, in the order of its address families.
of_families() {
	case $FAMILY in
	ipv4) "${1}4" "$2" ;;
	ipv6) "${1}6" "$2" ;;
	dual) echo "$("${1}4" "$2"),$("${1}6" "$2")" ;;
	dual6) echo "$("${1}6" "$2"),$("${1}4" "$2")" ;;
	esac
}

say() { echo "[$(date +%T)] $*"; }
die() {
	echo "$*" >&2
	exit 1
}

# within SECONDS WHAT COMMAND…: repeats the command until it succeeds.
within() {
	local end=$((SECONDS + $1)) seconds=$1 what=$2
	shift 2
	until "$@" >/dev/null 2>&1; do
		((SECONDS < end)) || die "$what: not within $seconds s"
		sleep 0.2
	done
}

# has_ipvs succeeds if the kernel has IPVS, which kube-proxy needs in this mode.
has_ipvs() { [[ -e /proc/net/ip_vs ]] || modprobe -q ip_vs 2>/dev/null; }

# has_vxlan succeeds if the kernel can make a VXLAN device.
has_vxlan() { unshare --net ip link add vxlan0 type vxlan id 1 dstport 8472 2>/dev/null; }

# has_sctp succeeds if the kernel has SCTP sockets.
has_sctp() { grep -q SCTP /proc/net/protocols || modprobe -q sctp 2>/dev/null; }

# Programs, once they are built.
built() { cat "$state/programs"; }
program() {
	local folder
	for folder in $(built); do
		[[ ! -x $folder/$1 ]] || { echo "$folder/$1"; return; }
	done
	die "no program $1"
}

in_control_plane() { nsenter --net="/run/netns/$prefix-cp" -- "$@"; }
kubectl() { in_control_plane timeout 60 "$(program kubectl)" --kubeconfig "$state/admin.conf" --request-timeout 10s "$@"; }

# with_libraries PROGRAM ROOT PATH: copies a program and what it is linked to.
with_libraries() {
	install -D "$1" "$2$3"
	ldd "$1" 2>/dev/null | grep -o '/[^ ]*' | while read -r library; do
		[[ -e $2$library ]] || install -D "$library" "$2$library"
	done || true
}

# give_image FILE: makes an image known to all nodes.
give_image() {
	local node
	for node in $nodes; do in_node "$node" ctr -n k8s.io images import "$1" >/dev/null; done
}

# A process is known by its number and the time at which it started, so that what
# took the number later is left alone. A zombie has ended.
started_at() { sed -E 's/.*\) //' "/proc/$1/stat" 2>/dev/null | awk '$1 != "Z" {print $20}'; }
remember() { echo "$1 $(started_at "$1")" >"$2"; } # PID FILE
running() {                                        # FILE: prints the pid
	local pid at
	read -r pid at 2>/dev/null <"$1" && [[ -n $at && $(started_at "$pid") == "$at" ]] && echo "$pid"
}

# node_init NODE prints the pid of the node's first process.
node_init() {
	local parent
	parent=$(running "$state/$1/pid") && pgrep -P "$parent" | head -n 1 | grep .
}
in_node() { # NODE COMMAND…
	local init
	init=$(node_init "$1") || die "node $1 is down"
	shift
	nsenter -t "$init" --mount --uts --ipc --net --pid -- "$@"
}

# hierarchies prints the roots of the cgroups: one of version 2, or several of
# version 1.
hierarchies() {
	if [[ -f /sys/fs/cgroup/cgroup.controllers ]]; then
		echo /sys/fs/cgroup
	else
		find /sys/fs/cgroup -mindepth 1 -maxdepth 1 -type d
	fi
}

# stop_node NODE ends all of a node at once, as a power failure does: its processes, its
# cgroups and its network. Its disk stays. up.sh starts it again.
stop_node() {
	local node=$1 hierarchy pid
	# A node ends with its first process, and what has started that one with it.
	for pid in $(node_init "$node") $(running "$state/$node/pid"); do kill -KILL "$pid" 2>/dev/null || true; done
	no_cgroups() {
		local left=0
		for hierarchy in $(hierarchies); do
			[[ ! -d $hierarchy/$prefix-$node ]] || find "$hierarchy/$prefix-$node" -depth -type d -exec rmdir {} + || left=1
		done
		return $left
	}
	(within 10 "removal of the cgroups of $node" no_cgroups)
	[[ ! -e /run/netns/$prefix-$node ]] || ip netns del "$prefix-$node"
}
