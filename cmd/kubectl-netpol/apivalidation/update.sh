#!/bin/sh
# Fetches the definitions of the administrators' kinds from the releases of
# network-policy-api that had them last. tests/cluster/integration/crds holds the same versions.
set -eu
cd "$(dirname "$0")/crds"
fetch() { # VERSION KIND...
	folder=$(cd / && GOWORK=off GOFLAGS=-mod=mod go mod download -json "sigs.k8s.io/network-policy-api@$1" |
		sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
	shift
	for kind; do
		install -m 644 "$folder/config/crd/experimental/policy.networking.k8s.io_$kind.yaml" .
	done
}
fetch v0.1.7 adminnetworkpolicies baselineadminnetworkpolicies
fetch v0.3.0 clusternetworkpolicies
