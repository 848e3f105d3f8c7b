#!/usr/bin/env bash
# definitions.sh: prints the CustomResourceDefinitions of the administrators' kinds, of
# the releases whose conformance suites are run.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
for release in v0.1.7 v0.3.0; do
	api=$(cd "$root/tests/cluster/conformance/$release" && go mod download && go list -m -f '{{.Dir}}' sigs.k8s.io/network-policy-api)
	for definition in "$api"/config/crd/experimental/policy.*.yaml; do
		echo ---
		cat "$definition"
	done
done
