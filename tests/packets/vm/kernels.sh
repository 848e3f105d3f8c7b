#!/usr/bin/env bash
# kernels.sh SUITE...: asks the kernels of these releases of Debian in the emulated machine
# what the agent asks when it starts, and writes the answers to docs/install/versions.md.
set -euo pipefail
cd "$(dirname "$0")/../../.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go test -c -o "$work/tests/" ./pkg/kernel/steer
for suite; do
	tests/packets/vm/run.sh -k "$suite" -t 600 -f "$work/tests:/tests" bash -c \
		'echo "release $(uname -r)"; modprobe -a nf_conntrack; NETNS_REQUIRED=1 /tests/steer.test -test.run "^TestKernelProbe$" -test.v' |
		sed -n 's/^release \([0-9]*\.[0-9]*\).*/kernel \1/p; s/.* feature \([a-z_]*\): <nil>.*/\1 yes/p; s/.* feature \([a-z_]*\): unsupported.*/\1 no/p' >"$work/$suite"
	[ "$(wc -l <"$work/$suite")" -gt 1 ] || { echo "$0: no answers from $suite" >&2; exit 1; }
done

# The first cell of a row and the last one, which says what the agent does, are kept.
cd "$work"
page=$OLDPWD/docs/install/versions.md
awk -v page="$page" -F ' *[|] *' '
	FILENAME != page { answer[FILENAME, $0 ~ / / ? substr($0, 1, index($0, " ") - 1) : $0] = substr($0, index($0, " ") + 1); next }
	{ name = $2; gsub(/`/, "", name) }
	(ARGV[1], name) in answer {
		row = "| " $2 " |"
		for (i = 1; i < ARGC - 1; i++) row = row " " (name == "kernel" ? ARGV[i] ", " : "") answer[ARGV[i], name] " |"
		print row " " $(NF - 1) " |"
		next
	}
	{ print }' "$@" "$page" >versions.md
cp versions.md "$page"
