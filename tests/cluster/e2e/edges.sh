#!/usr/bin/env bash
# edges.sh: runs the tests of tests/cluster/e2e/edges on the cluster that is up. RUN is a
# regular expression of tests, as go test -run reads it. OUTAGE is how long the API
# server is away, PODS how many pods start at once. The output and the reports of the probers are in OUT.
set -euo pipefail
. "$(dirname "$0")/cluster/lib.sh"
unset KUBECONFIG
. "$(dirname "$0")/target.sh"

{ # read as a whole, so that the checkout may change meanwhile
target
out=${OUT:-$root/bin/e2e}/edges
rm -rf "$out"
mkdir -p "$out"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
image=netpol-prober:edges
provide_prober "$image"

helm_version=v4.3.1
helm=$cache/helm-$helm_version/helm
[[ -x $helm ]] || GOBIN=$(dirname "$helm") go install "helm.sh/helm/v4/cmd/helm@$helm_version"

go build -C "$root/cmd/kubectl-netpol" -o "$work/kubectl-netpol" .

agent=$(ask -n kube-system get daemonset netpol-agent --ignore-not-found -o name)
manifest=$(cat "$state/manifest" 2>/dev/null || true)
started=$SECONDS status=0
cd "$root/tests/cluster/e2e/edges"
EDGES_STATE=$state EDGES_OUT=$out EDGES_AGENT=${agent:-none} EDGES_OUTAGE=${OUTAGE:-3m} EDGES_PODS=${PODS:-30} EDGES_PROBER=$image EDGES_PREFIX=$prefix EDGES_HELM=$helm EDGES_NETPOL=$work/kubectl-netpol \
	EDGES_AGNHOST=$(<"$(<"$state/images")/agnhost.name") EDGES_MANIFEST=$root/$manifest \
	go test -count 1 -v -timeout 2h ${RUN:+-run "$RUN"} . 2>&1 | tee "$out/log" || status=$?
number() { grep -cE "^--- $1" "$out/log" || true; }
record "edges: $(number '') tests, $(number PASS) passed, $(number FAIL) failed, $(number SKIP) skipped in $((SECONDS - started)) s" "${out%/edges}/results"
exit $status
}
