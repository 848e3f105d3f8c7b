#!/usr/bin/env bash
# parts.sh [TARGET | -beside TARGET]…: runs targets of make one after the other, each to its
# end, and one that -beside stands before beside those that follow. It prints a line of
# progress for each and a summary. The output of a target is shown when it has failed, or as it
# comes with VERBOSE=1. The exit status is 1 if one has failed.
set -uo pipefail
cd "$(dirname "$0")/../.."

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
failed=()
summary=()

# run runs a target and keeps its output, its exit status and how long it took.
run() {
	local started=$SECONDS
	if [[ -n ${VERBOSE:-} ]]; then
		"${MAKE:-make}" --no-print-directory "$1" 2>&1 | tee "$logs/$1"
	else
		"${MAKE:-make}" --no-print-directory "$1" >"$logs/$1" 2>&1
	fi
	echo "$? $((SECONDS - started))" >"$logs/$1.result" # of make: pipefail
}

# report adds a target that has ended to the summary.
report() {
	local status=1 seconds=0 result=ok # if it was killed
	read -r status seconds <"$logs/$1.result"
	if ((status != 0)); then
		result=FAILED
		failed+=("$1")
	fi
	# What a target says that it has not done.
	local not
	not=$(grep -m 1 '^NOT ' "$logs/$1")
	summary+=("$(printf '%-26s %-6s %5d s' "$1" "$result" "$seconds")${not:+  $not}")
	if [[ -z ${VERBOSE:-} ]]; then
		printf '%s, %d s\n' "$result" "$seconds"
		((status == 0)) || cat "$logs/$1"
	fi
}

# announce says that a target begins, or that it is waited for.
announce() {
	number=$((number + 1))
	if [[ -n ${VERBOSE:-} ]]; then
		echo "=== [$number/$total] make $1"
	else
		printf '%-32s ' "[$number/$total] make $1"
	fi
}

number=0 total=0 beside=
for argument; do
	[[ $argument == -beside ]] || total=$((total + 1))
done
while (($# > 0)); do
	if [[ $1 == -beside ]]; then
		beside=$2
		set -m # in a group of processes of its own, which does not get the interrupt of a terminal
		VERBOSE='' run "$beside" &
		set +m
		trap 'kill -- "-$!"; exit 130' INT TERM
		shift 2
		continue
	fi
	announce "$1"
	run "$1"
	report "$1"
	shift
done
if [[ -n $beside ]]; then
	announce "$beside"
	wait
	[[ -z ${VERBOSE:-} ]] || cat "$logs/$beside"
	report "$beside"
fi
echo
printf '%s\n' "${summary[@]}"
for target in "${failed[@]}"; do
	echo "Repeat with: make $target"
done
echo "$((total - ${#failed[@]})) passed, ${#failed[@]} failed"
echo "$SECONDS s in all"
((${#failed[@]} == 0))
