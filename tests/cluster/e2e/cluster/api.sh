#!/usr/bin/env bash
# api.sh stop|start: stops the API server, or starts what of the cluster has ended, and
# waits until it has happened.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
[[ -f $state/programs ]] || die "no cluster is up"
case ${1:-} in
stop)
	pid=$(running "$state/kube-apiserver.pid") || exit 0
	kill -KILL "$pid"
	ended() { ! running "$state/kube-apiserver.pid"; }
	within 20 "end of the API server" ended
	;;
start) AGENT=none "$here/up.sh" ;;
*) die "usage: api.sh stop|start" ;;
esac
