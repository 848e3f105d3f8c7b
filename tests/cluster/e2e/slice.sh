#!/usr/bin/env bash
# slice.sh: brings a cluster up, runs a dozen of Kubernetes' own tests of network
# policies on it, and takes it down: as root, minutes. It does so only where the
# cluster's programs have been built before, and says so where they have not: they take
# longer than everything else that CI runs. OUT is where the output goes.
set -euo pipefail
export CLUSTER_STATE=${CLUSTER_STATE:-/var/lib/kube-network-policies-slice} CLUSTER_PREFIX=${CLUSTER_PREFIX:-knps}
unset KUBECONFIG
. "$(dirname "$0")/cluster/lib.sh"

{ # read as a whole, so that the checkout may change meanwhile
[[ $EUID -eq 0 ]] || die "a cluster needs root"
not_run() {
	echo "NOT RUN: the cluster's programs are not built on this machine ($*). make cluster-up and make e2e build them."
	exit 0
}
compgen -G "$cache/servers/*/kubelet" >/dev/null || not_run all of them

# One after the other. The lock is on the folder that has the state, so that no file is left.
exec 8<"$(dirname "$state")"
flock -w 1800 8 || die "another slice runs"
# One that was killed has left its cluster.
"$here/down.sh" 8<&-
settings
missing=$(cd "$root/tests/cluster/integration" && go run ./servers/build -missing "$KUBERNETES" "$KUBERNETES/e2e" etcd coredns)
[[ -z $missing ]] || not_run $missing

# Each is the end of a spec's name, up to its labels.
specs=(
	"support a 'default-deny-ingress' policy"
	"support a 'default-deny-all' policy"
	"support allow-all policy"
	"enforce policy based on PodSelector and NamespaceSelector"
	"enforce policy based on Ports"
	"allow ingress access on one named port"
	"enforce except clause while egress access to server in CIDR block"
	"ensure an IP overlapping both IPBlock.CIDR and IPBlock.Except is allowed"
	"work with Ingress, Egress specified together"
	"enforce updated policy"
	"allow ingress access from updated pod"
	"stop enforcing policies after they are deleted"
)
# TCP: the same names exist for UDP and SCTP.
focus=$(printf '|%s' "${specs[@]//./\\.}")
export PROCS=${PROCS:-4} FOCUS="Netpol NetworkPolicy between server and client should (${focus:1}) \[Feature"

finish() {
	local status=$?
	trap - EXIT
	"$here/down.sh" || status=1
	exit "$status"
}
trap finish EXIT
trap 'exit 130' INT TERM
"$here/up.sh" 8<&-
"$here/../e2e.sh" 8<&-
# A spec that has got another name would go unnoticed.
ran=$(grep -oE 'Ran [0-9]+ of' "${OUT:-$root/bin/e2e}/run/log" | grep -oE '[0-9]+')
((ran == ${#specs[@]})) || die "$ran of ${#specs[@]} specs were found"
}
