#!/usr/bin/env bash
# pki.sh: makes what is missing of the cluster's certificates, each with a
# kubeconfig where its owner is a client of the API server.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
settings
pki=$state/pki
mkdir -p "$pki"
cd "$pki"
exec 2>>"$state/log/pki.log" # openssl reports its progress there

key=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
[[ -s ca.crt ]] || openssl req -x509 "${key[@]}" -days 30 -subj /CN=cluster-ca -keyout ca.key -out ca.crt \
	-addext keyUsage=critical,keyCertSign,cRLSign,digitalSignature
if [[ ! -s sa.pub ]]; then
	openssl genrsa -out sa.key 2048
	openssl rsa -in sa.key -pubout -out sa.pub
fi

certificate() { # NAME SUBJECT EXTENSIONS
	[[ ! -s $1.crt ]] || return 0
	openssl req "${key[@]}" -subj "$2" -keyout "$1.key" -out "$1.csr"
	openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -out "$1.new" \
		-extfile <(printf 'basicConstraints=CA:FALSE\nkeyUsage=critical,digitalSignature,keyEncipherment\n%s\n' "$3")
	mv "$1.new" "$1.crt"
}

client() { # NAME SUBJECT
	certificate "$1" "$2" extendedKeyUsage=clientAuth
	[[ ! -s $state/$1.conf ]] || return 0
	cat >"$state/$1.conf" <<YAML
apiVersion: v1
kind: Config
current-context: cluster
contexts: [{name: cluster, context: {cluster: cluster, user: user}}]
clusters: [{name: cluster, cluster: {server: "$server", certificate-authority-data: $(base64 -w 0 ca.crt)}}]
users: [{name: user, user: {client-certificate-data: $(base64 -w 0 "$1.crt"), client-key-data: $(base64 -w 0 "$1.key")}}]
YAML
}

service=kubernetes.default.svc
certificate apiserver /CN=kube-apiserver "extendedKeyUsage=serverAuth
subjectAltName=DNS:kubernetes,DNS:kubernetes.default,DNS:$service,DNS:$service.cluster.local,IP:127.0.0.1,IP:::1,IP:10.88.0.1,IP:fd00:88::1,IP:10.96.0.1,IP:fd00:10:96::1"
certificate apiserver-kubelet-client /O=system:masters/CN=apiserver-kubelet-client extendedKeyUsage=clientAuth
certificate front-proxy-client /CN=front-proxy-client extendedKeyUsage=clientAuth
client admin /O=system:masters/CN=admin
client kube-controller-manager /CN=system:kube-controller-manager
client kube-scheduler /CN=system:kube-scheduler
client kube-proxy /CN=system:kube-proxy
for node in $nodes; do
	client "$node" "/O=system:nodes/CN=system:node:$node"
done
