#!/usr/bin/env bash
# run.sh NODE COMMAND…: runs a command in all namespaces of a node, or in those of the
# control plane's network where NODE is cp.
# run.sh kubectl ARGUMENTS…: asks the API server, as its administrator.
# run.sh stop NODE: ends all of a node at once. up.sh starts it again.
# run.sh api stop|start: stops the API server, and starts it again.
# run.sh api freeze|thaw: keeps the API server from answering, and lets it answer again.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
[[ -f $state/programs ]] || die "no cluster is up"
where=$1
shift
case $where in
kubectl) in_control_plane "$(program kubectl)" --kubeconfig "$state/admin.conf" "$@" ;;
api) "$here/api.sh" "$@" ;;
stop) stop_node "$1" ;;
cp) in_control_plane "$@" ;;
*) in_node "$where" "$@" ;;
esac
