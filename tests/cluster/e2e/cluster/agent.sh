#!/usr/bin/env bash
# agent.sh MANIFEST: builds the agent's image out of this checkout, makes it known to
# the nodes and applies a manifest of the repository, as a user would.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
settings
manifest=$root/$1
[[ -f $manifest ]] || die "AGENT=$1: no such file in the repository"
image=$(awk '$1 == "image:" {print $2; exit}' "$manifest")

"$here/agent-image.sh" "$image" "$state/agent.tar.new"
changed=
if ! cmp -s "$state/agent.tar.new" "$state/agent.tar"; then
	changed=1
	give_image "$state/agent.tar.new"
fi

if [[ $1 == install-anp.yaml ]]; then
	"$here/definitions.sh" | kubectl apply --server-side --force-conflicts -f - >/dev/null
fi
# The metrics are open here: a Prometheus of the tests runs on another node.
sed -e 's/--metrics-bind-address=127.0.0.1:/--metrics-bind-address=:/' -e 's/^  policyTypes: \[Ingress\]$/&\n  ingress: [{}]/' "$manifest" |
	kubectl apply -f - -f "$root/install-writer-guard.yaml" >/dev/null
workloads=(daemonset/netpol-agent deployment/netpol-status)
# The image has changed but not its name.
[[ -z $changed || ! -f $state/agent.tar ]] || kubectl -n kube-system rollout restart "${workloads[@]}" >/dev/null
for workload in "${workloads[@]}"; do
	kubectl -n kube-system rollout status "$workload" --timeout 120s >/dev/null
done
mv "$state/agent.tar.new" "$state/agent.tar"
echo "$1" >"$state/manifest"
