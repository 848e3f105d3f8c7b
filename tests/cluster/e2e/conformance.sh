#!/usr/bin/env bash
# conformance.sh: runs the conformance suites of the network policy API with real pods,
# on the cluster that is up, or on that of KUBECONFIG. RELEASES names the suites.
# RUN is a regular expression of tests, as go test -run reads it. The output is in OUT.
# REPORT is a file for what network-policy-api collects of the suite of v0.3.0, with VERSION
# and PROOF in it. Then the cluster must have the definitions of this release and no others.
set -euo pipefail
. "$(dirname "$0")/cluster/lib.sh"
. "$(dirname "$0")/target.sh"

{ # read as a whole, so that the checkout may change meanwhile
no_namespaces() { ! ask get namespaces -o name | grep network-policy-conformance-; }

target
out=${OUT:-$root/bin/e2e}
mkdir -p "$out"
status=0
for release in ${RELEASES:-v0.1.7 v0.3.0}; do
	suite=$root/tests/cluster/conformance/$release
	log=$out/conformance-$release.log
	(cd "$suite" && go test -c -o "$out/conformance-$release.test" .)
	api=$(cd "$suite" && go list -m -f '{{.Dir}}' sigs.k8s.io/network-policy-api)
	provide $(sed -nE 's/^ *image: //p' "$api"/conformance/base/manifests.yaml | sort -u)
	within 300 "the namespaces of the last run to be gone" no_namespaces
	report=()
	[[ -z ${REPORT:-} || $release != v0.3.0 ]] || report=(-report "$REPORT" -version "$VERSION" -home "$PROJECT" -proof "$PROOF")
	started=$SECONDS result=0
	cd "$suite"
	at_target "$out/conformance-$release.test" -test.v -test.timeout 3h ${RUN:+-test.run "TestConformance/($RUN)"} "${report[@]}" >"$log" 2>&1 || result=1
	# Each level is indented by four spaces. The first is the test that runs the suite.
	number() { grep -cE "^ {4}--- $1" "$log" || true; }
	record "conformance $release: $(number '') tests, $(number PASS) passed, $(number FAIL) failed, $(number SKIP) skipped in $((SECONDS - started)) s" "$out/results"
	grep -E '^ *--- FAIL' "$log" || true
	((result == 0)) || { status=1 && echo "See $log" >&2; }
done
exit $status
}
