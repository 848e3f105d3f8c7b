#!/usr/bin/env bash
# proposals.sh: makes the cluster that is up, with AGENT=install-anp.yaml, serve and enforce the
# proposals of docs/early-feedback.md.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
settings
crds=$root/cmd/kubectl-netpol/apivalidation/crds/proposals
gates=$(sed -n 's/^# .*--feature-gates=\([A-Za-z]*=true\).*/\1/p' "$crds"/clusternetworkpolicies/*.yaml | paste -sd,)

kubectl apply -f "$crds/cidrgroups.yaml"
for patch in "$crds"/clusternetworkpolicies/*.yaml; do
	kubectl patch crd clusternetworkpolicies.policy.networking.k8s.io --type=json --patch-file="$patch"
done
{
	kubectl create clusterrole netpol-cidrgroups --dry-run=client -o yaml --verb=list,watch --resource=cidrgroups.policy.networking.k8s.io
	echo ---
	kubectl create clusterrolebinding netpol-cidrgroups --dry-run=client -o yaml --clusterrole=netpol-cidrgroups --serviceaccount=kube-system:netpol-agent
} | kubectl apply -f -
for workload in daemonset/netpol-agent deployment/netpol-status; do
	kubectl -n kube-system patch "$workload" --type=json \
		--patch "[{\"op\": \"add\", \"path\": \"/spec/template/spec/containers/0/args/-\", \"value\": \"--feature-gates=$gates\"}]"
	kubectl -n kube-system rollout status "$workload" --timeout 120s
done
