#!/usr/bin/env bash
# e2e.sh: runs Kubernetes' own end-to-end tests on the cluster that is up, or on that of
# KUBECONFIG with the kubectl, ginkgo and e2e.test of PATH, and prints and keeps a line
# of results. FOCUS and SKIP are regular expressions of specs. PROCS is how many run at
# once, TIMEOUT how long all may take. The output is in OUT; after a failure it includes
# the agents' logs and the kernel's tables.
set -euo pipefail
. "$(dirname "$0")/cluster/lib.sh"
. "$(dirname "$0")/target.sh"

{ # read as a whole, so that the checkout may change meanwhile
target
[[ -z $ours ]] || (cd "$root/tests/cluster/integration" && go run ./servers/build "$KUBERNETES/e2e") >/dev/null
focus=${FOCUS:-Netpol}
skip=${SKIP:-}
procs=${PROCS:-2}
out=${OUT:-$root/bin/e2e}
rm -rf "$out/run"
mkdir -p "$out/run"

flags=(--kubeconfig "$KUBECONFIG" --provider skeleton --num-nodes 2 --minStartupPods 0 --disable-log-dump
	--kubectl-path "$(tool kubectl)" --report-dir "$out/run")
started=$SECONDS
status=0
cd "$out/run" # ginkgo writes where it is
at_target "$(tool ginkgo)" run --procs "$procs" --focus "$focus" ${skip:+--skip "$skip"} --no-color -v \
	--timeout "${TIMEOUT:-1h}" "$(tool e2e.test)" -- "${flags[@]}" >"$out/run/log" 2>&1 || status=$?
seconds=$((SECONDS - started))

# collect keeps what is needed to find out why a spec has failed.
collect() {
	local node pod
	ask get pods -A -o wide >"$out/run/pods" || true
	ask get events -A >"$out/run/events" || true
	for pod in $(ask -n kube-system get pods -l 'app.kubernetes.io/name in (netpol-agent, netpol-status)' -o name); do
		ask -n kube-system logs "$pod" >"$out/run/$(basename "$pod").log" || true
		ask -n kube-system logs -p "$pod" >"$out/run/$(basename "$pod").previous.log" 2>/dev/null || true
	done
	[[ -n $ours ]] || return 0
	for node in $nodes; do
		in_node "$node" nft list ruleset >"$out/run/$node.nft" 2>/dev/null || true
		in_node "$node" conntrack -L >"$out/run/$node.conntrack" 2>/dev/null || true
		in_node "$node" conntrack -L -f ipv6 >>"$out/run/$node.conntrack" 2>/dev/null || true
		in_node "$node" curl -s --max-time 10 http://127.0.0.1:9080/metrics >"$out/run/$node.metrics" || true
	done
}
((status == 0)) || collect

# Ran 47 of 7340 Specs in 1020.000 seconds … 47 Passed | 0 Failed | …
number() { grep -oE "$1" "$out/run/log" | tail -n 1 | grep -oE '[0-9]+' | head -n 1; }
ran=$(number 'Ran [0-9]+ of') passed=$(number '[0-9]+ Passed') failed=$(number '[0-9]+ Failed')
grep -E '^\s*\[(FAIL|TIMEDOUT|INTERRUPTED|PANICKED)' "$out/run/log" | sort -u || true
record "$focus: ${ran:-0} specs run, ${passed:-0} passed, ${failed:-0} failed in $seconds s" "$out/results"
if ((status != 0)); then
	echo "See $out/run" >&2
elif ((${ran:-0} == 0)); then
	die "no spec matches FOCUS=$focus"
fi
exit $status
}
