#!/usr/bin/env bash
# parts.sh TARGET…: runs targets of make one after the other, each to its end, with
# a line of progress for each and a summary. The output of a target is shown when it
# has failed, or as it comes with VERBOSE=1. The exit status is 1 if one has failed.
set -uo pipefail
cd "$(dirname "$0")/.."

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
failed=()
summary=()
number=0
for target; do
	number=$((number + 1))
	started=$SECONDS
	if [[ -n ${VERBOSE:-} ]]; then
		echo "=== [$number/$#] make $target"
		"${MAKE:-make}" --no-print-directory "$target" 2>&1 | tee "$logs/$target"
	else
		printf '[%d/%d] make %-26s ' "$number" "$#" "$target"
		"${MAKE:-make}" --no-print-directory "$target" >"$logs/$target" 2>&1
	fi
	status=$? # of make: pipefail
	result=ok
	if ((status != 0)); then
		result=FAILED
		failed+=("$target")
	fi
	line=$(printf '%-26s %-6s %5d s' "$target" "$result" $((SECONDS - started)))
	# What a target says that it has not done.
	not=$(grep -m 1 '^NOT ' "$logs/$target")
	summary+=("$line${not:+  $not}")
	if [[ -z ${VERBOSE:-} ]]; then
		printf '%s, %d s\n' "$result" $((SECONDS - started))
		((status == 0)) || cat "$logs/$target"
	fi
done
echo
printf '%s\n' "${summary[@]}"
for target in "${failed[@]}"; do
	echo "Repeat with: make $target"
done
echo "$(($# - ${#failed[@]})) passed, ${#failed[@]} failed"
echo "$SECONDS s in all"
((${#failed[@]} == 0))
