#!/usr/bin/env bash
# compare.sh [-k SUITE] PROVIDER…: plays the scenarios with each PROVIDER in network namespaces, as root:
# netns is this project's agent, netns-upstream and netns-kube-router have the agents of others, and
# netns-none has none. Output and results are in OUT (bin/compare). RUN is a regular expression of
# scenarios, SETTLE how long a change may take.
#
# -k does so in the emulated machine, on the kernel of this release of Debian, such as bookworm.
# netns-upstream needs that where the own kernel lacks the queue statement of nftables.
set -euo pipefail
cd "$(dirname "$0")/../../.."

suite=''
while getopts k: option; do
	case $option in
	k) suite=$OPTARG ;;
	*) exit 2 ;;
	esac
done
shift $((OPTIND - 1))

out=${OUT:-bin/compare}
programs=$PWD/$out/programs
mkdir -p "$programs"
cp bin/kube-network-policies "$programs/"
CGO_ENABLED=0 go build -ldflags '-s -w' -o "$programs/" ./tests/packets/suite

# name prints the provider's name for the results, and provides its program.
name() {
	local folder
	case $1 in
	netns) echo "kube-network-policies $(git describe --tags --always --dirty)" ;;
	netns-none) echo none ;;
	netns-upstream)
		cp bin/kube-network-policies-v1.1.1 "$programs/"
		echo "kube-network-policies v1.1.1"
		;;
	netns-kube-router)
		folder=$(cd tests/cluster/integration && go run ./servers/build kube-router)
		cp "$folder/kube-router" "$programs/"
		basename "$folder" | sed 's/^kube-router-/kube-router /; s/-[^-]*$//'
		;;
	*) echo "$0: no provider $1" >&2; exit 2 ;;
	esac
}

# emulated runs a command in the emulated machine, in the folder of programs.
emulated() {
	local files=() program
	for program in iptables ip6tables; do
		for program in "$program" "$program"-{save,restore}; do
			files+=(-f "$(readlink -f "$(command -v iptables-nft)"):/usr/sbin/$program")
		done
	done
	tests/packets/vm/run.sh -k "$suite" -m 3000 -t 10800 -f "$programs:/programs" -f /etc/os-release:/etc/os-release -f /etc/protocols:/etc/protocols \
		-f "$(command -v ipset)" -f "$(dirname "$(find /usr/lib -name libxt_set.so | head -n 1)")" "${files[@]}" \
		bash -c 'cd /programs; modprobe -a nf_conntrack br_netfilter nft_ct nft_queue nft_compat ip_set xt_set
			echo 262144 >/proc/sys/net/netfilter/nf_conntrack_max; "$@"; status=$?; cat /tmp/results.json; exit $status' bash "$@"
}

for provider; do
	called=$(name "$provider")
	play=(-backend "$provider" -provider "$called" -settle "${SETTLE:-10s}" ${RUN:+-run "$RUN"})
	# A scenario that is not as expected is what this is about.
	if [[ -n $suite ]]; then
		emulated env AGENT_BINARY=./kube-network-policies PATH=/programs:/usr/sbin:/usr/bin:/bin suite "${play[@]}" -results /tmp/results.json |
			tee "$out/$provider.log" || true
		sed -n '/^{$/,/^}$/p' "$out/$provider.log" >"$out/$provider.json"
	else
		AGENT_BINARY=$programs/kube-network-policies PATH=$programs:$PATH suite "${play[@]}" -results "$out/$provider.json" |
			tee "$out/$provider.log" || true
	fi
	[[ -s $out/$provider.json ]] || { echo "$0: no results of $provider" >&2; exit 1; }
done
