#!/usr/bin/env bash
# Puts the kubectl-netpol of a release on PATH. Its checksum is that of the release, and its
# provenance says that the project's workflow has built it.
set -euo pipefail

version=${VERSION:-$ACTION_REF}
if [[ ! $version =~ ^v[0-9]+\.[0-9]+\.[0-9]+ ]]; then
  echo "::error::no release: use the action by a tag, such as @v0.3.0, or set version" >&2
  exit 2
fi
archive=kubectl-netpol-$version-linux-$(uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/').tar.gz
folder=$RUNNER_TEMP/kubectl-netpol
mkdir -p "$folder"
cd "$folder"
gh release download "$version" --repo "$REPOSITORY" --clobber --pattern "$archive" --pattern SHA256SUMS
sha256sum --check --ignore-missing --strict SHA256SUMS
gh attestation verify "$archive" --repo "$REPOSITORY"
tar -xzf "$archive" kubectl-netpol
echo "$folder" >>"$GITHUB_PATH"
