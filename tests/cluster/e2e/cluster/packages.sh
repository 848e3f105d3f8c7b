#!/usr/bin/env bash
# packages.sh: installs the Debian packages of the programs that are missing.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
settings

declare -A package=(
	[containerd]=containerd [runc]=runc [nft]=nftables [iptables]=iptables [conntrack]=conntrack
	[ip]=iproute2 [nsenter]=util-linux [pgrep]=procps [openssl]=openssl [jq]=jq
	# In the image that the end-to-end tests run.
	[busybox]=busybox-static [curl]=curl [dig]=bind9-dnsutils [getent]=libc-bin [wget]=wget [nc.openbsd]=netcat-openbsd
)
[[ $PROXY != ipvs ]] || package[ipset]=ipset
missing() {
	local program
	for program in "${!package[@]}"; do
		command -v "$program" >/dev/null || echo "${package[$program]}"
	done
	[[ -x /usr/lib/cni/ptp ]] || echo containernetworking-plugins
}

wanted=$(missing)
[[ -n $wanted ]] || exit 0
command -v apt-get >/dev/null || die "Please install: "$wanted
export DEBIAN_FRONTEND=noninteractive
# An installation that was interrupted must end before another can start, and one that
# runs beside this one holds locks until it has ended.
within 300 "end of interrupted installations (dpkg --configure -a)" dpkg --configure -a
within 300 "list of packages (apt-get update)" apt-get update -qq
left=$(wc -w <<<"$wanted")
for one in $wanted; do
	say "installing $one; $left packages are left, of some 10 s each"
	apt-get install -o DPkg::Lock::Timeout=300 -qq -y --no-install-recommends "$one" >/dev/null || {
		# A package's own script may fail where no init system runs.
		dpkg --configure -a >/dev/null || true
	}
	left=$((left - 1))
done
left=$(missing)
[[ -z $left ]] || die "apt-get did not install: "$left
