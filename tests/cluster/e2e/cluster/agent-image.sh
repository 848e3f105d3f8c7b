#!/usr/bin/env bash
# agent-image.sh NAME FILE: makes the image of the agent, of the same files as the
# Dockerfile does, without Docker.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
name=$1 file=$2

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/usr/bin"
(cd "$root" && go build -trimpath -ldflags "-s -w ${LDFLAGS:-}" -o "$work/usr/bin/" ./cmd/kube-network-policies ./cmd/status-writer)
"$here/image.sh" "$name" "$work" "$file" \
	'{"User": "0:0", "Env": ["PATH=/usr/bin"], "Entrypoint": ["kube-network-policies"]}'
