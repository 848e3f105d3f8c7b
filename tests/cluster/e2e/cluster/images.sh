#!/usr/bin/env bash
# images.sh FOLDER: makes the images that every cluster needs, unless the folder has
# them. FOLDER/NAME.tar is an image and FOLDER/NAME.name the first of its names.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
folder=$1
[[ ! -d $folder ]] || exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=$work/out
mkdir "$out"

image() { # FILE NAMES CONFIG: of what is in $work/FILE
	"$here/image.sh" "$2" "$work/$1" "$out/$1.tar" "$3"
	echo "${2%% *}" >"$out/$1.name"
}

# The tests ask for their images by the names that they have been compiled with.
images=$(program images)
named() { "$images" | grep -E "/$1:" | sort -V | tail -n 1; }

mkdir "$work/pause"
(cd "$root" && go build -trimpath -ldflags '-s -w' -o "$work/pause/pause" ./tests/cluster/e2e/cluster/pause)
image pause "$(named pause)" '{"Entrypoint": ["/pause"]}'

install -D "$(program coredns)" "$work/coredns/coredns"
image coredns "coredns:$(basename "$(dirname "$(program coredns)")" | cut -d - -f 2)" '{"Entrypoint": ["/coredns"]}'

boom=regression-issue-74839
install -D "$(program "$boom")" "$work/$boom/$boom"
image "$boom" "$(named "e2e-test-images/$boom")" "{\"Entrypoint\": [\"/$boom\"]}"

# The tests run sh, curl, wget, nc, dig, getent and coredns in this one, also under the names of
# images that have nothing else. sh is bash, because that of busybox prefers its own nc,
# which lacks options that the tests use.
agnhost=$work/agnhost
mkdir -p "$agnhost"/{bin,tmp,etc,uploads,proc,sys,dev}
chmod 1777 "$agnhost/tmp"
cp "$(program agnhost)" "$(program coredns)" "$agnhost/"
if ! has_sctp; then
	mv "$agnhost/agnhost" "$agnhost/agnhost-real"
	(cd "$root" && go build -trimpath -ldflags '-s -w' -o "$agnhost/agnhost" ./tests/cluster/e2e/cluster/agnhost)
fi
echo 'root:x:0:0:root:/:/bin/sh' >"$agnhost/etc/passwd"
echo 'root:x:0:' >"$agnhost/etc/group"
echo 'hosts: files dns' >"$agnhost/etc/nsswitch.conf"
with_libraries "$(command -v busybox)" "$agnhost" /bin/busybox
for applet in ls cat echo sleep ping hostname id grep env mkdir rm touch test true false seq timeout head tail tr sort date netstat nslookup dd; do
	ln -s busybox "$agnhost/bin/$applet"
done
for tool in bash curl dig getent ip wget; do
	with_libraries "$(command -v "$tool")" "$agnhost" "/bin/$tool"
done
# That of busybox 1.35 crashes with -T, which the tests of Services use. It tries once.
echo 'tries = 1' >"$agnhost/etc/wgetrc"
with_libraries "$(command -v nc.openbsd)" "$agnhost" /bin/nc
ln -s bash "$agnhost/bin/sh"
image agnhost "$(named e2e-test-images/agnhost) $(named e2e-test-images/busybox) $(named "e2e-test-images/(jessie-dnsutils|glibc-dns-testing)")" '{"Env": ["PATH=/bin"], "Entrypoint": ["/agnhost"], "Cmd": ["pause"]}'

mkdir -p "$(dirname "$folder")"
rm -rf "$folder.new"
cp -r "$out" "$folder.new"
mv "$folder.new" "$folder"
