#!/usr/bin/env bash
# tools.sh PROGRAM…: installs the programs that are missing. On Debian and Ubuntu
# with apt-get, as root; elsewhere it says what is missing.
set -euo pipefail
exec 9<"$0" && flock 9 # one at a time: apt-get fails while another one runs

declare -A package=([nft]=nftables [ip]=iproute2 [iptables-nft]=iptables [iptables-legacy]=iptables
	[ipset]=ipset [conntrack]=conntrack [tc]=iproute2 [ipvsadm]=ipvsadm
	[promtool]=prometheus [prometheus]=prometheus
	[buildah]=buildah [chromium]=chromium [mmdebstrap]='mmdebstrap debian-archive-keyring')
missing=()
for program; do
	# Not every user's PATH has the folders that root's programs are in.
	PATH=$PATH:/usr/sbin:/sbin command -v "$program" >/dev/null || missing+=(${package[$program]})
done
if ((${#missing[@]} == 0)); then
	exit 0
fi
if ! command -v apt-get >/dev/null || [[ $EUID -ne 0 ]]; then
	echo "Please install: ${missing[*]}" >&2
	exit 1
fi
echo "Installing ${missing[*]}"
# Another apt-get may hold the locks, as after a boot.
apt=(apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=5 -qq)
"${apt[@]}" update
DEBIAN_FRONTEND=noninteractive "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null
# The packages start services, which no test needs.
if [[ " ${missing[*]} " == *" prometheus "* ]] && command -v systemctl >/dev/null; then
	systemctl disable --quiet --now prometheus || true
fi
