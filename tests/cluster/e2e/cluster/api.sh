#!/usr/bin/env bash
# api.sh stop|start: stops the API server, or starts what of the cluster has ended, and
# waits until it has happened.
# api.sh freeze|thaw: keeps the API server from answering, and lets it answer again.
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
freeze) kill -STOP "$(running "$state/kube-apiserver.pid")" ;;
thaw) kill -CONT "$(running "$state/kube-apiserver.pid")" ;;
*) die "usage: api.sh stop|start|freeze|thaw" ;;
esac
