#!/usr/bin/env bash
# programs.sh VERSION FOLDER: downloads the e2e.test, ginkgo and kubectl of a release of
# Kubernetes. What it downloads must have the checksums that the release publishes.
set -euo pipefail
version=$1 folder=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
architecture=$(go env GOARCH)
for part in test client; do
	file=kubernetes-$part-linux-$architecture.tar.gz
	for name in "$file" "$file.sha512"; do
		curl -fsSL --retry 5 -o "$name" "https://dl.k8s.io/$version/$name"
	done
	echo "$(cut -d ' ' -f 1 "$file.sha512")  $file" | sha512sum --check --quiet
	tar -xzf "$file"
done
mkdir -p "$folder"
cp kubernetes/test/bin/{e2e.test,ginkgo} kubernetes/client/bin/kubectl "$folder/"
