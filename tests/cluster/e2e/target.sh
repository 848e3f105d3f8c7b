# Which cluster the tests run on. Sourced after cluster/lib.sh.

# target sets KUBECONFIG, unless it is set, to that of the cluster that is up, and
# families to those of its pods, as the flags of tests name them.
target() {
	ours=
	if [[ -n ${KUBECONFIG:-} ]]; then
		families=${FAMILIES:-IPv4}
		return
	fi
	[[ -f $state/programs ]] || die "no cluster is up: make cluster-up, or set KUBECONFIG"
	ours=1
	settings
	export KUBECONFIG=$state/admin.conf
	case $FAMILY in
	ipv4) families=IPv4 ;;
	ipv6) families=IPv6 ;;
	*) families=IPv4,IPv6 ;;
	esac
}

# at_target COMMAND…: runs it where the API server can be reached.
at_target() {
	if [[ -n $ours ]]; then in_control_plane "$@"; else "$@"; fi
}

# ask ARGUMENTS…: kubectl.
ask() {
	if [[ -n $ours ]]; then kubectl "$@"; else command kubectl "$@"; fi
}

# tool NAME: the path of a program of Kubernetes.
tool() {
	if [[ -n $ours ]]; then program "$1"; else type -P "$1" || die "no $1 in PATH"; fi
}

# provide IMAGE…: gives agnhost on the nodes of the cluster that is up these names, too.
# Other clusters pull their images.
provide() {
	[[ -n $ours ]] || return 0
	local image node
	for node in $nodes; do
		for image; do
			in_node "$node" ctr -n k8s.io images ls -q name=="$image" | grep -q . ||
				in_node "$node" ctr -n k8s.io images tag "$(<"$(<"$state/images")/agnhost.name")" "$image" >/dev/null
		done
	done
}

# provide_prober IMAGE: builds the prober of this checkout, and gives its image this name on
# the nodes of the cluster that is up. Other clusters pull it, or have it already.
provide_prober() {
	[[ -n $ours ]] || return 0
	local work
	work=$(mktemp -d)
	mkdir -p "$work/files/usr/bin"
	(cd "$root" && go build -trimpath -ldflags '-s -w' -o "$work/files/usr/bin/prober" ./tests/cluster/prober)
	"$here/image.sh" "$1" "$work/files" "$work/image.tar" '{"User": "65532:65532", "Env": ["PATH=/usr/bin"], "Entrypoint": ["prober"]}'
	give_image "$work/image.tar"
	rm -r "$work"
}

# provider prints what enforces the policies: on the cluster that is up what it was made with, on
# another one what PROVIDER says.
provider() {
	local version
	version="kube-network-policies $(git -C "$root" describe --tags --always --dirty 2>/dev/null)"
	if [[ -z $ours ]]; then
		echo "${PROVIDER:-$version}"
	elif [[ -f $state/manifest ]]; then
		echo "$version"
	else
		echo "none"
	fi
}

# The commit of the agent that enforces the policies.
agent_version() {
	ask -n kube-system exec daemonset/netpol-agent -- kube-network-policies --version 2>/dev/null | awk 'NR == 1 {print $3}' || true
}

# record LINE FILE: prints a line of results with what it was reached on, and keeps it.
record() {
	local agent on
	agent=$(agent_version)
	if [[ -n $ours ]]; then
		on="$FAMILY, kube-proxy $PROXY, CNI $CNI, pod subnets $SUBNETS, Kubernetes $(basename "$(dirname "$(program kubelet)")" | cut -d - -f 2)"
	else
		on="Kubernetes $(ask version -o json | jq -r .serverVersion.gitVersion)"
	fi
	echo "$1 ($on, agent ${agent:-none})" | tee -a "$2"
}
