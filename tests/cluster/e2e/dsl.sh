#!/usr/bin/env bash
# dsl.sh: runs every scenario of the truth tables (tests/netpol/README.md) with real pods,
# on the cluster that is up, or on that of KUBECONFIG. RUN is a regular expression of
# scenarios. Further flags are in FLAGS. IMAGE is that of the prober, which another cluster must know,
# or agnhost for the suite without it. PROVIDER is what enforces the policies on another cluster, for
# the results. The output, a report and the results are in OUT.
set -euo pipefail
. "$(dirname "$0")/cluster/lib.sh"
. "$(dirname "$0")/target.sh"

{ # read as a whole, so that the checkout may change meanwhile
target
out=${OUT:-$root/bin/e2e}
log=$out/dsl.log
mkdir -p "$out"
(cd "$root/tests/netpol" && go build -o "$out/netpol" ./cmd/netpol)
image=${IMAGE:-netpol-prober:v0.2.0}
outside=()
if [[ $image != agnhost ]]; then
	provide_prober "$image"
	outside=(-prober "$image")
fi
if [[ -n $ours && $image == agnhost ]]; then
	outside=(-host-network)
elif [[ -n $ours ]]; then
	(cd "$root" && go build -o "$out/prober" ./tests/cluster/prober)
	outside+=(-host-network -sctp -outside "env PATH=$out:$PATH $here/outside.sh")
fi
started=$SECONDS status=0
at_target "$out/netpol" -kubeconfig "$KUBECONFIG" -families "$families" -report "$out/dsl.md" \
	-results "$out/dsl.json" -provider "$(provider)" \
	"${outside[@]}" ${RUN:+-run "$RUN"} ${FLAGS:-} 2>&1 | tee "$log" || status=$?
record "scenarios: $(grep -E '^cluster: [0-9]+ scenarios' "$log") in $((SECONDS - started)) s" "$out/results"
exit $status
}
