#!/usr/bin/env bash
# parts.sh [-beside TARGET] TARGET…: runs targets of make one after the other, each to its
# end, and the one that is named first beside them. It prints a line of progress for each and
# a summary. The output of a target is shown when it has failed, or as it comes with
# VERBOSE=1. The exit status is 1 if one has failed.
set -uo pipefail
cd "$(dirname "$0")/../.."

logs=$(mktemp -d)
beside=
if [[ ${1:-} == -beside ]]; then
	beside=$2
	shift 2
fi
targets=("$@" ${beside:+"$beside"})
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

if [[ -n $beside ]]; then
	set -m # in a group of processes of its own, which does not get the interrupt of a terminal
	run "$beside" &
	set +m
	trap 'kill -- "-$!"; exit 130' INT TERM
fi
number=0
for target in "${targets[@]}"; do
	number=$((number + 1))
	progress="[$number/${#targets[@]}] make $target"
	if [[ -n ${VERBOSE:-} ]]; then
		echo "=== $progress"
	else
		printf '%-32s ' "$progress"
	fi
	if [[ $target == "$beside" ]]; then
		wait
	else
		run "$target"
	fi
	report "$target"
done
echo
printf '%s\n' "${summary[@]}"
for target in "${failed[@]}"; do
	echo "Repeat with: make $target"
done
echo "$((${#targets[@]} - ${#failed[@]})) passed, ${#failed[@]} failed"
echo "$SECONDS s in all"
((${#failed[@]} == 0))
