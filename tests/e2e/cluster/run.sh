#!/usr/bin/env bash
# run.sh NODE COMMAND…: runs a command in all namespaces of a node, or in those of the
# control plane's network where NODE is cp.
# run.sh kubectl ARGUMENTS…: asks the API server, as its administrator.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
[[ -f $state/programs ]] || die "no cluster is up"
where=$1
shift
case $where in
kubectl) in_control_plane "$(program kubectl)" --kubeconfig "$state/admin.conf" "$@" ;;
cp) in_control_plane "$@" ;;
*) in_node "$where" "$@" ;;
esac
