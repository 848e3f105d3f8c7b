#!/usr/bin/env bash
# kube-network-policies-v1.sh: builds the last release of the implementation that this project
# follows out of its Go module, makes an image of it and starts it on every node.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
settings

version=v1.1.1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
source=$(cd / && go mod download -json "sigs.k8s.io/kube-network-policies@$version" | sed -nE 's/^\t"Dir": "(.*)",$/\1/p')
cp -r --no-preserve=mode "$source" "$work/source"
note=
if ! unshare --net nft 'add table inet t; add chain inet t c; add rule inet t c queue num 1' 2>/dev/null; then
	# This kernel has no queue statement: the target NFQUEUE of xtables does the same.
	sed -i -e 's|"github.com/google/nftables/expr"|&\n\t"github.com/google/nftables/xt"|' \
		-e 's|queue := &expr.Queue{Num: uint16(c.config.QueueID)}|info := xt.Unknown{byte(c.config.QueueID), byte(c.config.QueueID >> 8), 1, 0, 0, 0, 0, 0}\n\tqueue := \&expr.Target{Name: "NFQUEUE", Rev: 3, Info: \&info}|' \
		-e 's|queue.Flag = expr.QueueFlagBypass|info[4] = 1|' "$work/source/pkg/dataplane/controller.go"
	note=', xtables'
fi
files=$work/files
mkdir -p "$files"/{bin,run,tmp,etc}
(cd "$work/source" && CGO_ENABLED=0 go build -trimpath -o "$files/bin/netpol" ./cmd/kube-network-policies/standard)
image=kube-network-policies-v1:$version
"$here/image.sh" "$image" "$files" "$work/image.tar" '{"User": "0:0"}'
give_image "$work/image.tar"

sed "s|IMAGE|$image|" "$here/kube-network-policies-v1.yaml" | kubectl apply -f - >/dev/null
kubectl -n kube-system rollout status daemonset/kube-network-policies --timeout 120s >/dev/null
echo "kube-network-policies $version$note" >"$state/provider"
