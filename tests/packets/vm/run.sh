#!/usr/bin/env bash
# run.sh [-k SUITE] [-m MEGABYTES] [-t SECONDS] [-f FILE[:DEST]]... COMMAND [ARGUMENT]...
#
# Runs COMMAND as root on another kernel: Debian's cloud kernel in an emulated
# machine, made of a RAM file system with busybox, bash, ip, nft and each FILE
# (a program with its libraries, or a folder; at DEST, or else where it is now).
# Prints what COMMAND prints and ends with its exit status.
#
# That kernel has the queue statement of nftables, which not every machine's
# kernel has. The machine has no network but what COMMAND makes in it. It runs
# without KVM: about ten seconds to boot, and ten times slower than outside.
#
# -k takes the kernel of another release of Debian, such as bullseye (5.10), trixie (6.12)
# or trixie-backports.
#
# On Debian and Ubuntu missing programs are installed with apt-get, as root. The
# kernel comes from the same place and is kept in the user's cache folder.
set -euo pipefail

usage() { sed -n '2,17s/^# \{0,1\}//p' "$0" >&2; exit 2; }

suite='' memory=1024 seconds=600 files=()
while getopts k:m:t:f: option; do
	case $option in
	k) suite=$OPTARG ;;
	m) memory=$OPTARG ;;
	t) seconds=$OPTARG ;;
	f) files+=("$OPTARG") ;;
	*) usage ;;
	esac
done
shift $((OPTIND - 1))
(($# > 0)) || usage

cache=${XDG_CACHE_HOME:-$HOME/.cache}/kube-network-policies/vm
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
release=$cache/kernel${suite:+-$suite}

# Network code only: the rest of the modules is never asked for.
modules=(net lib crypto drivers/net)

install_missing() { # program=package...
	local pair missing=()
	for pair in "$@"; do
		command -v "${pair%%=*}" >/dev/null || missing+=("${pair##*=}")
	done
	((${#missing[@]} > 0)) || return 0
	command -v apt-get >/dev/null || { echo "$0: please install ${missing[*]}" >&2; exit 1; }
	apt-get update -q >/dev/null
	DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null
}

# fetch_kernel unpacks the newest cloud kernel into the cache, whole or not at all. Newer
# kernels have compressed modules, which busybox does not load.
fetch_kernel() {
	[ ! -d "$release" ] || return 0
	local package apt=(-o APT::Sandbox::User=root)
	if [ -n "$suite" ]; then
		mkdir -p "$work/apt/"{sources,lists/partial,cache/archives/partial}
		awk -v suite="$suite" 'BEGIN { RS = ""; ORS = "\n\n" } NR == 1 { gsub(/Suites:[^\n]*/, "Suites: " suite); print }' \
			/etc/apt/sources.list.d/debian.sources >"$work/apt/sources/debian.sources"
		apt+=(-o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$work/apt/sources"
			-o Dir::State::Lists="$work/apt/lists" -o Dir::Cache="$work/apt/cache")
	fi
	apt-get "${apt[@]}" update -q >/dev/null
	package=$(apt-cache "${apt[@]}" depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
	[ -n "$package" ] || { echo "$0: apt knows no linux-image-cloud-amd64" >&2; exit 1; }
	mkdir "$work/package"
	# Newer releases have kernel and modules in packages that it depends on.
	apt-cache "${apt[@]}" depends --recurse --important "$package" | grep "^linux-.*${package#linux-image-}$" >"$work/packages"
	(cd "$work/package" && xargs apt-get "${apt[@]}" download -q <"$work/packages" >/dev/null && for file in *.deb; do dpkg-deb -x "$file" unpacked; done)
	find "$work/package/unpacked" -name '*.ko.xz' -exec unxz {} +
	mkdir -p "$cache"
	mv "$work/package/unpacked" "$release" 2>/dev/null || [ -d "$release" ] # another run was faster
}

# copy puts a file or folder into the machine, and with a program its libraries.
copy() { # source [destination]
	local library
	mkdir -p "$root$(dirname "${2:-$1}")"
	cp -aL "$1" "$root${2:-$1}"
	[ -f "$1" ] || return 0
	{ ldd "$1" 2>/dev/null || true; } | grep -o '/[^ ]*' | while read -r library; do
		mkdir -p "$root$(dirname "$library")"
		cp -Lu "$library" "$root$library"
	done || true # a static program has none
}

copy_modules() {
	local from folder
	from=$(find "$release" -type d -path '*/lib/modules/*' -print -quit)
	set -- "${from##*/}"
	mkdir -p "$root/lib/modules/$1/kernel/drivers"
	cp "$from"/modules.{order,builtin,builtin.modinfo} "$root/lib/modules/$1/"
	for folder in "${modules[@]}"; do
		[ ! -d "$from/kernel/$folder" ] || cp -a "$from/kernel/$folder" "$root/lib/modules/$1/kernel/$folder"
	done
	depmod -b "$root" "$1"
}

# write_init writes the machine's only process. The exit status comes out on the
# serial line, after a marker that no command prints.
write_init() { # end-marker command...
	local end=$1
	shift
	printf '%q ' "$@" >"$root/command"
	cat >"$root/init" <<-INIT
		#!/bin/busybox sh
		/bin/busybox --install -s /bin
		ln -sf /usr/bin/bash /bin/sh # that of busybox prefers its own ip
		export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
		mount -t proc proc /proc
		mount -t sysfs sys /sys
		mount -t devtmpfs dev /dev
		ln -s /proc/self/fd/0 /dev/stdin
		mount -t tmpfs tmp /tmp
		mount -t tmpfs run /run
		echo /bin/modprobe >/proc/sys/kernel/modprobe
		ip link set lo up
		# A hook whose first chain comes, or whose last one goes, is patched into code that may
		# run. QEMU 7.2 sometimes executes that instruction for ever then, so each hook has one.
		for hook in prerouting input forward output postrouting; do
			echo "add table inet hooks; add chain inet hooks \$hook { type filter hook \$hook priority 0; }"
		done | nft -f -
		/usr/bin/bash /command </dev/null 2>&1
		echo "$end \$?"
		poweroff -f
	INIT
	chmod +x "$root/init"
}

install_missing qemu-system-x86_64=qemu-system-x86 cpio=cpio unxz=xz-utils depmod=kmod busybox=busybox-static \
	nft=nftables ip=iproute2
fetch_kernel
kernel=$(find "$release" -name 'vmlinuz*' -print -quit)

mkdir -p "$root"/{bin,proc,sys,dev,run,tmp,root}
cp "$(command -v busybox)" "$root/bin/busybox"
copy "$(command -v nft)" /usr/sbin/nft
copy "$(command -v ip)" /usr/sbin/ip
copy "$(command -v bash)" /usr/bin/bash
for file in ${files[@]+"${files[@]}"}; do
	case $file in
	*:*) copy "${file%%:*}" "${file#*:}" ;;
	*) copy "$(realpath "$file")" ;;
	esac
done
copy_modules
end="end-of-command-$RANDOM$RANDOM"
write_init "$end" "$@"
(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initrd"

timeout "$seconds" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m "$memory" \
	-display none -monitor none -serial stdio -no-reboot \
	-kernel "$kernel" -initrd "$work/initrd" -append "console=ttyS0 quiet panic=-1 tsc=reliable" \
	</dev/null 2>"$work/errors" | tr -d '\r' | tee "$work/output" |
	grep --line-buffered -av "^$end \|SeaBIOS\|iPXE\|Booting from\|reboot: Power down" || true
status=$(sed -n "s/^.*$end //p" "$work/output" | tail -n 1)
if [ -z "$status" ]; then
	cat "$work/errors" >&2
	echo "$0: the machine ended before the command did (limit $seconds s)" >&2
	exit 124
fi
exit "$status"
