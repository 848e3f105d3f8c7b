#!/usr/bin/env bash
# parts.sh [-beside "TARGET…"] TARGET…: runs targets of make one after the other, each to its
# end, and beside them those of -beside, also one after the other. A target named "--" is
# where those are waited for, which is otherwise done at the end. It prints a line for each
# and a summary. The output of a target is shown when it has failed, or with VERBOSE=1. The
# exit status is 1 if one has failed.
set -uo pipefail
cd "$(dirname "$0")/.."

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
beside=()
if [[ ${1:-} == -beside ]]; then
	read -ra beside <<<"$2"
	shift 2
fi
targets=("$@")
[[ " $* " == *" -- "* ]] || targets+=(--)
number=0 all=$((${#targets[@]} - 1 + ${#beside[@]}))
failed=()
summary=()

# run runs a target, and keeps its output, its exit status and how long it took. With show
# the output is also printed as it comes.
run() {
	local started=$SECONDS
	if [[ -n ${2:-} ]]; then
		"${MAKE:-make}" --no-print-directory "$1" 2>&1 | tee "$logs/$1"
	else
		"${MAKE:-make}" --no-print-directory "$1" >"$logs/$1" 2>&1
	fi
	echo "$? $((SECONDS - started))" >"$logs/$1.result" # of make: pipefail
}

# begin prints which target is next.
begin() {
	number=$((number + 1))
	if [[ -n ${VERBOSE:-} ]]; then
		echo "=== [$number/$all] make $1"
	else
		printf '%-34s ' "[$number/$all] make $1"
	fi
}

# end prints how a target has ended, and adds it to the summary.
end() {
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

if ((${#beside[@]})); then
	set -m # in a group of processes of its own, which does not get the interrupt of a terminal
	for target in "${beside[@]}"; do run "$target"; done &
	set +m
	trap 'kill -- "-$!"; exit 130' INT TERM
fi
for target in "${targets[@]}"; do
	if [[ $target != -- ]]; then
		begin "$target"
		run "$target" "${VERBOSE:-}"
		end "$target"
		continue
	fi
	wait
	for target in "${beside[@]}"; do
		begin "$target"
		[[ -z ${VERBOSE:-} ]] || cat "$logs/$target"
		end "$target"
	done
done
echo
printf '%s\n' "${summary[@]}"
for target in "${failed[@]}"; do
	echo "Repeat with: make $target"
done
echo "$((all - ${#failed[@]})) passed, ${#failed[@]} failed"
echo "$SECONDS s in all"
((${#failed[@]} == 0))
