#!/usr/bin/env bash
# kube-router.sh: builds kube-router out of its Go module, makes an image of it with the programs that
# it runs, and starts it on every node, for network policies only.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
settings
[[ $FAMILY == ipv4 ]] || die "PROVIDER=kube-router: needs FAMILY=ipv4, see docs/testing/comparison.md"

folder=$(cd "$root/tests/cluster/integration" && go run ./servers/build kube-router)
version=$(basename "$folder" | cut -d - -f 3)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
files=$work/files
install -D "$folder/kube-router" "$files/usr/bin/kube-router"
for tool in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore ipset ip conntrack; do
	with_libraries "$(readlink -f "$(command -v "$tool")")" "$files" "/usr/sbin/$tool"
done
# iptables loads its matches and targets from here.
extensions=$(dirname "$(dpkg -L iptables | grep 'libxt_set\.so$')")
mkdir -p "$files$extensions"
cp -a "$extensions/." "$files$extensions/"
mkdir -p "$files"/{run,tmp,etc,var/lib}
"$here/image.sh" "kube-router:$version" "$files" "$work/image.tar" \
	'{"User": "0:0", "Env": ["PATH=/usr/sbin:/usr/bin"], "Entrypoint": ["kube-router"]}'
give_image "$work/image.tar"

sed -e "s|IMAGE|kube-router:$version|" -e "s|SERVICES|$services|" "$here/kube-router.yaml" | kubectl apply -f - >/dev/null
kubectl -n kube-system rollout status daemonset/kube-router --timeout 120s >/dev/null
echo "kube-router $version" >"$state/provider"
