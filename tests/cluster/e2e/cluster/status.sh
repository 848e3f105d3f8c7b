#!/usr/bin/env bash
# status.sh: what of the cluster is up. The exit status is 1 if something is not.
set -uo pipefail
. "$(dirname "$0")/lib.sh"
[[ -f $state/programs ]] || die "no cluster is up"
settings
status=0
for name in "${parameters[@]}"; do echo "$name=${!name}"; done
for name in etcd kube-apiserver kube-controller-manager kube-scheduler; do
	if pid=$(running "$state/$name.pid"); then
		echo "$name: pid $pid"
	else
		echo "$name: down"
		status=1
	fi
done
for node in $nodes; do
	if pid=$(node_init "$node"); then
		echo "node $node: pid $pid"
	else
		echo "node $node: down"
		status=1
	fi
done
kubectl get nodes || status=1
kubectl -n kube-system get pods -o wide || status=1
# Fails unless every pod of the system is ready.
kubectl -n kube-system wait pod --all --for condition=Ready --timeout 1s >/dev/null || status=1
exit $status
