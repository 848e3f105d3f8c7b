#!/usr/bin/env bash
# vulnerabilities.sh GOVULNCHECK…: runs govulncheck. Without a way to its database
# nothing can be checked; that is said and is no failure.
set -uo pipefail
output=$("$@" 2>&1)
status=$?
echo "$output"
if ((status != 0)) && grep -q '^govulncheck: fetching vulnerabilities: ' <<<"$output"; then
	echo "NOT CHECKED for known vulnerabilities: their database cannot be reached from here."
	exit 0
fi
exit $status
