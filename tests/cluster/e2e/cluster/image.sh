#!/usr/bin/env bash
# image.sh NAMES FOLDER FILE CONFIG: makes a container image out of a folder, as
# docker save would write it. NAMES are separated by spaces. CONFIG is JSON, as in an
# image's configuration. The same files make the same image.
set -euo pipefail
names=$1 folder=$2 file=$3 config=$4

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pack() { tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner "$@"; }
pack -C "$folder" -cf "$work/layer.tar" .
layer=$(sha256sum "$work/layer.tar" | cut -d ' ' -f 1)
jq -n --arg layer "sha256:$layer" --argjson config "$config" --arg arch "$(go env GOARCH)" \
	'{architecture: $arch, os: "linux", config: $config, rootfs: {type: "layers", diff_ids: [$layer]}}' >"$work/config.json"
jq -n --arg names "$names" '[{Config: "config.json", RepoTags: ($names / " "), Layers: ["layer.tar"]}]' >"$work/manifest.json"
pack -C "$work" -cf "$file" manifest.json config.json layer.tar
