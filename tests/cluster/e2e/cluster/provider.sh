#!/usr/bin/env bash
# provider.sh NAME: builds another provider of network policies out of its Go module, makes an image
# of it with the programs that it runs, and starts it on every node.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
settings
name=$1
[[ $FAMILY == ipv4 ]] || die "PROVIDER=$name: needs FAMILY=ipv4, see docs/testing/comparison.md"

folder=$(cd "$root/tests/cluster/integration" && go run ./servers/build "$name")
version=$(basename "$folder" | sed "s/^$name-//; s/-[^-]*$//")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
files=$work/files
install -D "$folder/$name" "$files/usr/bin/$name"
for tool in bash grep iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore ipset ip conntrack; do
	with_libraries "$(readlink -f "$(command -v "$tool")")" "$files" "/usr/sbin/$tool"
done
# iptables loads its matches and targets from here.
extensions=$(dirname "$(dpkg -L iptables | grep 'libxt_set\.so$')")
mkdir -p "$files$extensions"
cp -a "$extensions/." "$files$extensions/"
mkdir -p "$files"/{run,tmp,etc,var/lib}
cp /etc/protocols "$files/etc/" # ipset reads the names of protocols
"$here/image.sh" "$name:$version" "$files" "$work/image.tar" \
	"{\"User\": \"0:0\", \"Env\": [\"PATH=/usr/sbin:/usr/bin\"], \"Entrypoint\": [\"$name\"]}"
give_image "$work/image.tar"

sed -e "s|IMAGE|$name:$version|" -e "s|SERVICES|$services|" "$here/$name.yaml" | kubectl apply -f - >/dev/null
ready() { kubectl -n kube-system rollout status "daemonset/$name" --timeout 5s >/dev/null 2>&1; }
within 600 "$name on every node" ready
echo "$name $version" >"$state/provider"
