#!/usr/bin/env bash
# down.sh: ends what up.sh has started, by its process ids, and removes what it made:
# namespaces, cgroups, folders, state, and the logs of a start that failed.
set -uo pipefail
. "$(dirname "$0")/lib.sh"
[[ -n ${KEEP_LOGS:-} ]] || rm -rf "$state.failed"
[[ -d $state ]] || exit 0
[[ $EUID -eq 0 ]] || die "a cluster needs root"
exec 9>"$state/lock"
flock -w 10 9 || die "another process brings the cluster up or down"

for node in $nodes; do stop_node "$node"; done
control_plane=$(compgen -G "$state/*.pid")
for file in $control_plane; do
	pid=$(running "$file") && kill "$pid"
done
all_ended() {
	local file
	for file in $control_plane; do ! running "$file" || return 1; done
}
if ! (within 10 "end of the control plane" all_ended) 2>/dev/null; then
	for file in $control_plane; do
		pid=$(running "$file") && kill -KILL "$pid"
	done
fi

no_state() { rm -rf "$state"; }
for namespace in "/run/netns/$prefix-cp" "/run/netns/$prefix-outside-"*; do
	[[ ! -e $namespace ]] || ip netns del "$(basename "$namespace")"
done
# To remove a folder takes away what another cluster has mounted there.
if [[ -f $state/made ]] && ! grep -qs ' /var/lib/kubelet ' /proc/[0-9]*/mountinfo; then
	tac "$state/made" | xargs rmdir --ignore-fail-on-non-empty
fi
within 20 "removal of $state" no_state
