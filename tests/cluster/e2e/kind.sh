#!/usr/bin/env bash
# kind.sh up: makes a cluster of three nodes with kind and Docker and installs the agent
# of this checkout. FAMILY is ipv4, ipv6 or dual, PROXY the mode of kube-proxy, KIND the
# release of kind, which has one of Kubernetes as its default. AGENT is a manifest of
# the repository.
# kind.sh logs FOLDER: keeps what is needed to find out why a test has failed.
# kind.sh down: removes the cluster.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
name=kube-network-policies
image=$(awk '$1 == "image:" {print $2; exit}' "$root/install.yaml")
kind() { go run "sigs.k8s.io/kind@${KIND:-v0.33.0}" "$@"; }

# kind's own network plugin enforces network policies, too. These nodes have the plain
# plugin ptp, with routes between the nodes.
configure_network() {
	local node other range family gateway ranges routes
	for node in $(kind get nodes --name "$name"); do
		ranges=() routes=()
		for range in $(kubectl get node "$node" -o jsonpath='{.spec.podCIDRs[*]}'); do
			ranges+=("[{\"subnet\": \"$range\"}]")
			if [[ $range == *:* ]]; then
				routes+=('{"dst": "::/0"}') family=-6 gateway='^[0-9a-f]*:'
			else
				routes+=('{"dst": "0.0.0.0/0"}') family=-4 gateway='\.'
			fi
			gateway=$(kubectl get node "$node" -o jsonpath='{range .status.addresses[?(@.type=="InternalIP")]}{.address}{"\n"}{end}' |
				grep -E "$gateway" | head -n 1)
			for other in $(kind get nodes --name "$name"); do
				[[ $other == "$node" ]] || docker exec "$other" ip "$family" route replace "$range" via "$gateway"
			done
		done
		[[ ${#ranges[@]} -gt 0 ]] || { echo "$node has no addresses for pods" >&2; return 1; }
		docker exec -i "$node" sh -c 'cat >/etc/cni/net.d/.new && mv /etc/cni/net.d/.new /etc/cni/net.d/10-ptp.conflist' <<-JSON
			{"cniVersion": "0.4.0", "name": "ptp", "plugins": [
			  {"type": "ptp", "ipMasq": false, "ipam": {"type": "host-local", "ranges": [$(IFS=, && echo "${ranges[*]}")], "routes": [$(IFS=, && echo "${routes[*]}")]}},
			  {"type": "portmap", "capabilities": {"portMappings": true}}]}
		JSON
	done
}

# The controller manager gives each node its ranges some time after the node is there.
have_ranges() {
	[[ $(kubectl get nodes -o json | jq '[.items[] | select(.spec.podCIDRs == null)] | length') == 0 ]]
}

up() {
	kind create cluster --name "$name" --config - <<-YAML
		kind: Cluster
		apiVersion: kind.x-k8s.io/v1alpha4
		networking: {ipFamily: ${FAMILY:-dual}, kubeProxyMode: ${PROXY:-nftables}, disableDefaultCNI: true}
		nodes: [{role: control-plane}, {role: worker}, {role: worker}]
	YAML
	timeout 120 bash -c "$(declare -f have_ranges); until have_ranges; do sleep 1; done"
	configure_network
	docker build --build-arg LDFLAGS="${LDFLAGS:-}" -t "$image" "$root"
	kind load docker-image --name "$name" "$image"
	kubectl wait node --all --for condition=Ready --timeout 5m
	if [[ ${AGENT:=install.yaml} == install-anp.yaml ]]; then
		"$root/tests/cluster/e2e/cluster/definitions.sh" | kubectl apply --server-side --force-conflicts -f -
	fi
	kubectl apply -f "$root/$AGENT" -f "$root/install-writer-guard.yaml"
	for workload in daemonset/netpol-agent deployment/netpol-status deployment/coredns; do
		kubectl -n kube-system rollout status "$workload" --timeout 5m
	done
}

logs() {
	local node
	mkdir -p "$1"
	kind export logs --name "$name" "$1"
	kubectl get pods -A -o wide >"$1/pods" || true
	kubectl get events -A >"$1/events" || true
	for node in $(kind get nodes --name "$name"); do
		docker exec "$node" nft list ruleset >"$1/$node.nft" || true
	done
}

case ${1:-} in
up) up ;;
logs) logs "${2:?usage: kind.sh logs FOLDER}" ;;
down) kind delete cluster --name "$name" ;;
*) sed -n '2,/^set/s/^# //p' "$0" >&2; exit 2 ;;
esac
