package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/clusterfiles"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// servicesOf is a pod that may reach a range of Services and nothing else, with Services.
const servicesOf = `apiVersion: v1
kind: Pod
metadata: {namespace: x, name: a, labels: {app: a}}
spec: {nodeName: n1}
status: {phase: Running, podIPs: [{ip: 10.0.0.1}, {ip: "fd00::1"}]}
---
apiVersion: v1
kind: Pod
metadata: {namespace: x, name: b, labels: {app: b}}
spec: {nodeName: n1}
status: {phase: Running, podIPs: [{ip: 10.0.0.2}, {ip: "fd00::2"}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: x, name: services}
spec:
  podSelector: {matchLabels: {app: a}}
  policyTypes: [Egress]
  egress:
  - to: [{ipBlock: {cidr: 10.96.0.0/12}}, {ipBlock: {cidr: 203.0.113.0/24}}, {ipBlock: {cidr: fd96::/16}}]
  - to: [{podSelector: {matchLabels: {app: b}}}]
    ports: [{port: 8080}]
---
apiVersion: v1
kind: Service
metadata: {namespace: default, name: kubernetes}
spec:
  clusterIP: 10.96.0.1
  clusterIPs: [10.96.0.1, "fd96::1"]
  ports: [{name: https, port: 443, targetPort: 6443}]
---
apiVersion: v1
kind: Service
metadata: {namespace: x, name: b}
spec:
  clusterIP: 10.96.0.2
  clusterIPs: [10.96.0.2, "fd96::2"]
  externalIPs: [203.0.113.7]
  selector: {app: b}
  ports: [{name: web, port: 80, targetPort: 8080, nodePort: 30080}, {name: admin, port: 81, targetPort: 9090, nodePort: 30081}]
status: {loadBalancer: {ingress: [{ip: 203.0.113.8}, {ip: 203.0.113.9, ipMode: Proxy}]}}
---
apiVersion: v1
kind: Service
metadata: {namespace: x, name: unknown}
spec: {clusterIP: 10.96.0.3, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {namespace: x, name: headless}
spec: {clusterIP: None, selector: {app: b}, ports: [{port: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {namespace: x, name: elsewhere}
spec: {type: ExternalName, externalName: db.example.com}
---
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {addresses: [{type: InternalIP, address: 192.168.0.1}]}
---
`

// declaring is a pod with ports, and a Service without some.
const declaring = `apiVersion: v1
kind: Pod
metadata: {namespace: x, name: c, labels: {app: c}}
spec: {nodeName: n1, containers: [{name: c, ports: [{name: http, containerPort: 8080}, {containerPort: 53, protocol: UDP}]}]}
status: {phase: Running, podIPs: [{ip: 10.0.0.3}]}
---
apiVersion: v1
kind: Service
metadata: {namespace: x, name: c}
spec: {clusterIP: None, selector: {app: c}}
`

// hostPort is a pod with ports of its node.
const hostPort = `apiVersion: v1
kind: Pod
metadata: {namespace: x, name: h, labels: {app: h}}
spec:
  nodeName: n1
  containers: [{name: c, ports: [{containerPort: 8080, hostPort: 18080}, {containerPort: 8081, hostPort: 18081, hostIP: 192.0.2.9}, {containerPort: 8082, hostPort: 18082, hostIP: 127.0.0.1}]}]
status: {phase: Running, podIPs: [{ip: 10.0.0.4}]}
`

const (
	endpointsOfAPI = `apiVersion: v1
kind: Endpoints
metadata: {namespace: default, name: kubernetes}
subsets: [{addresses: [{ip: 172.18.0.2}], ports: [{name: https, port: 6443}]}]
`
	sliceOfAPI = `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: default, name: kubernetes-x, labels: {kubernetes.io/service-name: kubernetes}}
addressType: IPv4
endpoints: [{addresses: [172.18.0.2]}, {addresses: [172.18.0.9], conditions: {ready: false}}]
ports: [{name: https, port: 6443, protocol: TCP}]
`
	rangeOfServices = `---
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec: {cidrs: [10.96.0.0/12, "fd96::/16"]}
`
)

// Packets to an address of a Service have that of an endpoint when policies see them.
func TestAddressesOfServices(t *testing.T) {
	for name, tc := range map[string]struct {
		more, command string
		code          int
		want          string
	}{
		"the API server by Endpoints": {endpointsOfAPI, "explain x/a 10.96.0.1 --port 443", 1,
			"x/a -> 172.18.0.2, TCP 6443: denied\n"},
		"and says so": {endpointsOfAPI, "explain x/a 10.96.0.1 --port 443", 1,
			"Note: 10.96.0.1 is an address of service default/kubernetes; policies see what stands behind its port 443: 172.18.0.2 at TCP 6443.\n"},
		"by an EndpointSlice": {sliceOfAPI, "explain x/a 10.96.0.1 --port 443", 1, "x/a -> 172.18.0.2, TCP 6443: denied\n"},
		"by both":             {sliceOfAPI + "---\n" + endpointsOfAPI, "explain x/a 10.96.0.1 --port 443", 1, "x/a -> 172.18.0.2, TCP 6443: denied\n"},
		"by the port's name":  {sliceOfAPI, "explain x/a 10.96.0.1 --port https", 1, "x/a -> 172.18.0.2, TCP 6443: denied\n"},
		"by the name":         {sliceOfAPI, "explain x/a default/svc/kubernetes", 1, "x/a -> 172.18.0.2, TCP 6443: denied\n"},
		"allowed":             {strings.ReplaceAll(sliceOfAPI, "172.18.0.2", "203.0.113.77"), "explain x/a 10.96.0.1 --port 443", 0, "x/a -> 203.0.113.77, TCP 6443: allowed\n"},
		"pods at an allowed":  {"", "explain x/a 10.96.0.2 --port 80", 0, "x/a -> x/b, TCP 8080: allowed\n"},
		"and a denied port":   {"", "explain x/a 10.96.0.2 --port 81", 1, "x/a -> x/b, TCP 9090: denied\n"},
		"an external IP":      {"", "explain x/a 203.0.113.7 --port 81", 1, "x/a -> x/b, TCP 9090: denied\n"},
		"a load balancer":     {"", "explain x/a 203.0.113.8 --port 81", 1, "x/a -> x/b, TCP 9090: denied\n"},
		"one that is a proxy": {"", "explain x/a 203.0.113.9 --port 81", 0, "x/a -> 203.0.113.9, TCP 81: allowed\n"},
		"no such port":        {"", "explain x/a 10.96.0.2 --port 82", 2, "10.96.0.2 is an address of service x/b, which has no port TCP 82: such packets are dropped"},
		"a NodePort":          {"", "explain x/a 192.168.0.1 --port 30081", 1, "x/a -> x/b, TCP 9090: denied\n"},
		"a NodePort, from outside": {"", "explain 203.0.113.99 192.168.0.1 --port 30080", 0,
			"Note: TCP 30080 of each node is a NodePort of service x/b; policies see what stands behind it: x/b at TCP 8080.\n" +
				"Note: a pod on another node than the one that such packets enter sees that node's address as their source (externalTrafficPolicy: Cluster).\n"},
		"a host port": {hostPort, "explain x/a 192.168.0.1 --port 18080", 1,
			"x/a -> x/h, TCP 8080: denied\n"},
		"and says what": {hostPort, "explain x/a 192.168.0.1 --port 18080", 1,
			"Note: TCP 18080 of node n1 is a host port; policies see the pod behind it: x/h at TCP 8080.\n"},
		"of another protocol":      {hostPort, "explain x/a 192.168.0.1 --port 18080 --protocol UDP", 0, "x/a -> 192.168.0.1, UDP 18080: allowed\n"},
		"at another address":       {hostPort, "explain x/a 192.168.0.1 --port 18081", 0, "x/a -> 192.168.0.1, TCP 18081: allowed\n"},
		"of a loopback address":    {hostPort, "explain x/a 192.168.0.1 --port 18082", 0, "x/a -> 192.168.0.1, TCP 18082: allowed\n"},
		"a port of the node":       {"", "explain x/a 192.168.0.1 --port 10250", 0, "x/a -> 192.168.0.1, TCP 10250: allowed\n"},
		"a name, and its port":     {sliceOfAPI, "explain x/a default/svc/kubernetes --port 443", 1, "x/a -> 172.18.0.2, TCP 6443: denied\n"},
		"and a port behind it":     {sliceOfAPI, "explain x/a default/svc/kubernetes --port 6443", 1, "x/a -> 172.18.0.2, TCP 6443: denied\n"},
		"and says of what":         {sliceOfAPI, "explain x/a default/svc/kubernetes", 1, "Note: policies see what stands behind port 443 of service default/kubernetes: 172.18.0.2 at TCP 6443.\n"},
		"a port is missing":        {"", "explain x/a x/svc/b", 2, "--port is missing: service x/b has TCP 80 (web), TCP 81 (admin)\n"},
		"also of an address":       {"", "explain x/a 10.96.0.2", 2, "--port is missing: service x/b has TCP 80 (web), TCP 81 (admin)\n"},
		"and of a protocol":        {"", "explain x/a x/svc/b --protocol UDP", 2, "--port is missing, and service x/b has none of UDP\n"},
		"the only one of UDP":      {declaring, "explain x/a x/c --protocol UDP", 1, "x/a -> x/c, UDP 53: denied\n"},
		"also of a Service":        {declaring, "explain x/a x/svc/c --protocol UDP", 1, "x/a -> x/c, UDP 53: denied\n"},
		"the port of a pod":        {"", "explain x/a x/b:8080", 0, "x/a -> x/b, TCP 8080: allowed\n"},
		"of a Service":             {"", "explain x/a x/svc/b:web", 0, "TCP 8080: allowed\n"},
		"of an address":            {"", "explain x/a 203.0.113.99:80", 0, "x/a -> 203.0.113.99, TCP 80: allowed\n"},
		"of IPv6":                  {"", "explain x/a [2001:db8::1]:80", 1, "x/a -> 2001:db8::1, TCP 80: denied\n"},
		"of IPv6 with a mistake":   {"", "explain x/a fd00::zz:80", 2, "fd00::zz:80"},
		"twice":                    {"", "explain x/a x/b:80 --port 81", 2, "--port=81: x/b:80 has a port already\n"},
		"not a port":               {"", "explain x/a x/b:0", 2, "0"},
		"without a number":         {"", "explain x/a x/b:", 2, `"x/b:"`},
		"and of a pod":             {declaring, "explain x/a x/c", 2, "--port is missing: x/c has TCP 8080 (http), UDP 53\n"},
		"and of an address":        {"", "explain x/a 192.0.2.1", 2, "--port is missing\n"},
		"without ports of its own": {declaring, "explain x/a x/svc/c", 2, "--port is missing: x/svc/c has TCP 8080 (http), UDP 53\n"},
		"only the protocol":        {"", "explain x/a x/svc/b --protocol XYZ", 2, "protocol \"XYZ\": must be TCP, UDP, SCTP or ICMP\n"},
		"a port it has not":        {"", "explain x/a x/svc/b --port 9999", 1, "Note: service x/b has no port TCP 9999, and drops such packets; it has TCP 80 (web), TCP 81 (admin)."},
		"a target port":            {"", "explain x/a x/svc/b --port 8080", 0, "Egress and ingress allow it.\nNote: exposed"},
		"a headless one":           {"", "explain x/a x/svc/headless", 0, "x/a -> x/b, TCP 8080: allowed\n"},
		"a name of something":      {"", "explain x/a x/svc/elsewhere", 2, "service x/elsewhere is another name for db.example.com"},
		"a cluster IP as client":   {sliceOfAPI, "explain 10.96.0.1 x/b --port 80", 0, "172.18.0.2 -> x/b, TCP 80: allowed\n"},
		"and says who connects":    {sliceOfAPI, "explain 10.96.0.1 x/b --port 80", 0, "no packet comes from it: clients are what stands behind it, 172.18.0.2.\n"},
		"the API server as client": {sliceOfAPI, "explain default/svc/kubernetes x/b --port 80", 0, "172.18.0.2 -> x/b, TCP 80: allowed\n"},
		"the matrix of a NodePort": {"", "matrix --from x/a --to 192.168.0.1 --port 30081", 0, "TCP 30081 of each node is a NodePort of service x/b; policies see what stands behind it: x/b at TCP 9090\n"},
		"the matrix of a name":     {sliceOfAPI, "matrix --from x/a --to default/svc/kubernetes --port 443", 0, "172.18.0.2 at TCP 6443\n"},
		"the matrix of a client":   {sliceOfAPI, "matrix --from 10.96.0.1 --to x/b --port 443", 0, "no packet comes from it"},
		"another protocol":         {"", "explain x/a 10.96.0.2 --port 80 --protocol UDP", 2, "which has no port UDP 80"},
		"nothing is known":         {"", "explain x/a 10.96.0.3 --port 80", 2, "what is behind it is not known"},
		"pods of that family":      {"", "explain x/a fd96::2 --port 80", 0, "Egress of x/a (fd00::1 on"},
		"another family":           {strings.ReplaceAll(strings.ReplaceAll(sliceOfAPI, "IPv4", "IPv6"), "172.18.0.2", "\"fd12::2\""), "explain x/a fd96::1 --port 443", 1, "x/a -> fd12::2, TCP 6443: denied\n"},
		"no address of one":        {"", "explain x/a 10.96.0.99 --port 80", 0, "x/a -> 10.96.0.99, TCP 80: allowed\n"},
		"a client":                 {"", "explain 203.0.113.7 x/b --port 80", 0, "203.0.113.7 -> x/b, TCP 80: allowed\n"},
		"of none, in the range":    {rangeOfServices, "explain x/a 10.96.0.99 --port 80", 2, "10.96.0.99 is in the range of Services 10.96.0.0/12, and no Service has it: packets to it are dropped, and none come from it"},
		"without a port":           {rangeOfServices, "explain x/a 10.96.0.99", 2, "destination: 10.96.0.99 is in the range of Services 10.96.0.0/12"},
		"as a client":              {rangeOfServices, "explain 10.96.0.99 x/b --port 80", 2, "source: 10.96.0.99 is in the range of Services 10.96.0.0/12"},
		"in a matrix, as a client": {rangeOfServices, "matrix --from fd96::99 --to x/b", 2, "--from=fd96::99: fd96::99 is in the range of Services fd96::/16"},
		"in a matrix":              {rangeOfServices, "matrix --to 10.96.0.99", 2, "--to=10.96.0.99: 10.96.0.99 is in the range of Services 10.96.0.0/12"},
		"selects none":             {"---\napiVersion: v1\nkind: Service\nmetadata: {namespace: x, name: none}\nspec: {clusterIP: 10.96.0.8, selector: {app: gone, tier: db}, ports: [{port: 80}]}\n", "explain x/a x/svc/none", 2, "destination: service none selects no pod (app=gone,tier=db) in namespace x; there are those of"},
		"of v1beta1":               {strings.ReplaceAll(rangeOfServices, "/v1", "/v1beta1"), "explain x/a fd96::99 --port 80", 2, "fd96::99 is in the range of Services fd96::/16, and no Service has it"},
		"of one, in the range":     {rangeOfServices, "explain x/a 10.96.0.2 --port 80", 0, "x/a -> x/b, TCP 8080: allowed\n"},
		"beside the range":         {rangeOfServices, "explain x/a 203.0.113.44 --port 80", 0, "x/a -> 203.0.113.44, TCP 80: allowed\n"},
		"a block of the range":     {rangeOfServices, "check --fail-on none", 0, "10.96.0.0/12 is in the range of Services 10.96.0.0/12"},
		"the matrix":               {sliceOfAPI, "matrix --from x/a --to 10.96.0.1 --port 443", 0, "10.96.0.1 is an address of service default/kubernetes; policies see what stands behind its port 443: 172.18.0.2 at TCP 6443\n"},
		"the matrix of ports":      {"", "matrix --from x/a --to 10.96.0.2", 0, "8080/TCP"},
		"matrix, and the ports":    {"", "matrix --from x/a --to 10.96.0.2 --to 203.0.113.99 --port 80", 2, "--port: the Services in --to have different target ports"},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := call(t, servicesOf+tc.more, tc.command+" -f -")
			if code != tc.code || !strings.Contains(stdout+stderr, tc.want) {
				t.Errorf("got %d\n%s%swant\n%s", code, stdout, stderr, tc.want)
			}
		})
	}
	_, allowed, _ := call(t, servicesOf+sliceOfAPI, "matrix --from x/a --to 10.96.0.1 --port 443 -o json -f -")
	if strings.Contains(allowed, "true") {
		t.Errorf("the matrix says\n%s", allowed)
	}
}

// liveServices returns flags for the cluster servicesOf, with what else is behind Services, as an
// API server with these rights has it.
func liveServices(t *testing.T, rights may, more string) string {
	t.Helper()
	objects, err := clusterfiles.Read([]string{clusterfiles.Stdin}, strings.NewReader(servicesOf+more), clusterfiles.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := server(t, rights)
	a := s.Config.Handler.(*apiServer)
	a.store(compile.KindPod, asObjects(objects.Pods)...)
	a.store(compile.KindNode, asObjects(objects.Nodes)...)
	a.store(compile.KindNetworkPolicy, asObjects(objects.Policies)...)
	a.store(kindService, asObjects(objects.Services)...)
	a.store(kindServiceCIDR, asObjects(objects.ServiceCIDRs)...)
	a.store(kindEndpointSlice, asObjects(objects.EndpointSlices)...)
	return " --context shop --kubeconfig " + kubeconfig(t, s.URL)
}

// Live clusters answer for what stands behind Services, too, as far as it may be read.
func TestServicesOfALiveCluster(t *testing.T) {
	for _, tc := range []struct {
		name    string
		rights  may
		command string
		code    int
		want    string
	}{
		{"an address", everywhere, "explain x/a 10.96.0.1 --port 443", 1, "x/a -> 172.18.0.2, TCP 6443: denied\n"},
		{"a name", everywhere, "explain x/a default/svc/kubernetes", 1, "x/a -> 172.18.0.2, TCP 6443: denied\n"},
		{"a NodePort", everywhere, "explain x/a 192.168.0.1 --port 30081", 1, "x/a -> x/b, TCP 9090: denied\n"},
		{"one namespace and that of the Service", only("x", "default"), "explain x/a default/svc/kubernetes", 1, "x/a -> 172.18.0.2, TCP 6443: denied\n"},
		{"an address that no Service has", everywhere, "explain x/a 10.96.0.99 --port 80", 2, "is in the range of Services 10.96.0.0/12, and no Service has it"},
		{"without the range", except("servicecidrs"), "explain x/a 10.96.0.99 --port 80", 0, "x/a -> 10.96.0.99, TCP 80: allowed\n"},
		{"an address in the range without Services", except("services"), "explain x/a 10.96.0.2 --port 80", 2, "no known Service has it: Services could not be read\n"},
		{"without EndpointSlices", except("endpointslices"), "explain x/a default/svc/kubernetes", 2, "what is behind it is not known: EndpointSlices could not be read\n"},
		{"without Services", except("services"), "explain x/a default/svc/kubernetes", 2, "no service kubernetes in namespace default is known: Services could not be read\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, stdout, stderr := call(t, "", tc.command+liveServices(t, tc.rights, sliceOfAPI+rangeOfServices))
			if code != tc.code || !strings.Contains(stdout+stderr, tc.want) {
				t.Errorf("got %d\n%s%swant\n%s", code, stdout, stderr, tc.want)
			}
		})
	}
}

// Expectations about an address of a Service are about what stands behind it.
func TestExpectationsOfServiceAddresses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "intent.yaml")
	expect := func(to, port, what string) string {
		return "- {from: x/a, to: \"" + to + "\", port: " + port + ", expect: " + what + "}\n"
	}
	text := "apiVersion: kube-network-policies.x-k8s.io/v1alpha1\nkind: Expectations\nexpectations:\n" +
		expect("10.96.0.1", "443", "deny") + expect("10.96.0.2", "80", "allow") + expect("203.0.113.8", "81", "deny") + expect("10.96.0.99", "80", "allow") +
		expect("default/svc/kubernetes", "443", "deny") + expect("x/svc/b", "80", "allow") + expect("x/svc/b", "8080", "allow") + expect("192.168.0.1", "30081", "deny") +
		"- {from: default/svc/kubernetes, to: x/b, port: 80, expect: allow}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := call(t, servicesOf+endpointsOfAPI, "assert "+file+" -f -")
	for _, want := range []string{"x/a -> 10.96.0.1 (service default/kubernetes, port 443), TCP 6443: denied\n", "x/a -> default/svc/kubernetes (port 443), TCP 6443: denied\n"} {
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("got %d\n%s%swant %s", code, stdout, stderr, want)
		}
	}
	if err := os.WriteFile(file, []byte(text+expect("10.96.0.2", "82", "deny")), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := call(t, servicesOf+endpointsOfAPI, "assert "+file+" -f -"); code != 2 || !strings.Contains(stderr, "which has no port TCP 82") {
		t.Errorf("got %d %s", code, stderr)
	}
}

// Policies never see the address of a Service, so that a block with it changes nothing: what is
// behind it is compared.
func TestDiffOfServices(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	for _, tc := range []struct {
		name, block, flags string
		code               int
		want, never        string
	}{
		{"a cluster IP", "10.96.0.1/32", "", 0, "Nothing changes.\n", "10.96.0.1"},
		{"what is behind it", "172.18.0.2/32", "", 1, "  newly allowed: x/a -> 172.18.0.2\n", "10.96.0.1"},
		{"and says so", "172.18.0.2/32", "", 1, "172.18.0.2 is behind service default/kubernetes.\n", ""},
		{"an address that is given", "172.18.0.0/24", "--address 10.96.0.1", 1, "  newly allowed: x/a -> 172.18.0.2\n", "outside 10.96.0.1"},
		{"a name that is given", "172.18.0.0/24", "--address default/svc/kubernetes", 1, "and with 172.18.0.2 outside", ""},
		{"pods are compared anyway", "172.18.0.0/24", "--address 10.96.0.2", 0, "between 2 pods", "10.96.0.2"},
		{"no such Service", "172.18.0.0/24", "--address default/svc/none", 2, "no service none in namespace default", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			policy := "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {namespace: x, name: more}\nspec: {podSelector: {matchLabels: {app: a}}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: " + tc.block + "}}]}]}\n"
			if err := os.WriteFile(file, []byte(policy), 0o600); err != nil {
				t.Fatal(err)
			}
			for where, flags := range map[string]string{"files": " -f -", "live": liveServices(t, everywhere, sliceOfAPI)} {
				code, stdout, stderr := call(t, servicesOf+sliceOfAPI, "diff --family IPv4 "+tc.flags+flags+" -f "+file)
				if code != tc.code || !strings.Contains(stdout+stderr, tc.want) || tc.never != "" && strings.Contains(stdout, tc.never) {
					t.Errorf("%s: got %d\n%s%swant\n%s", where, code, stdout, stderr, tc.want)
				}
			}
		})
	}
}

// A block with the address of a Service never matches; the finding says what does.
func TestCheckOfServiceAddresses(t *testing.T) {
	const policies = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {namespace: x, name: p}\nspec: {podSelector: {}, policyTypes: [DIRECTION], RULES: [{PEERS: [{ipBlock: {cidr: BLOCK}}]}]}\n"
	egress := strings.NewReplacer("DIRECTION", "Egress", "RULES", "egress", "PEERS", "to")
	ingress := strings.NewReplacer("DIRECTION", "Ingress", "RULES", "ingress", "PEERS", "from")
	for _, tc := range []struct {
		name, policy, block, want string // want is empty if nothing is found
	}{
		{"the API server", egress.Replace(policies), "10.96.0.1/32", "10.96.0.1 is the address of Service default/kubernetes [service-address]\n" +
			"    Policies see packets after the Service's address was replaced by that of a pod: the block never matches.\n" +
			"    Fix: Allow what is behind the Service: 172.18.0.2 at TCP 6443.\n"},
		{"pods", egress.Replace(policies), "10.96.0.2/32", "    Fix: Select the pods behind the Service.\n"},
		{"an external IP", egress.Replace(policies), "203.0.113.7/32", "203.0.113.7 is the address of Service x/b [service-address]\n"},
		{"a load balancer", egress.Replace(policies), "203.0.113.8/32", "203.0.113.8 is the address of Service x/b [service-address]\n"},
		{"one that is a proxy", egress.Replace(policies), "203.0.113.9/32", ""},
		{"a load balancer that connects", ingress.Replace(policies), "203.0.113.8/32", ""},
		{"a cluster IP as a client", ingress.Replace(policies), "10.96.0.1/32", "10.96.0.1 is the address of Service default/kubernetes [service-address]\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			others := strings.Replace(servicesOf, "10.96.0.0/12", "192.0.2.0/24", 1) // of a policy that has the range
			_, stdout, stderr := call(t, others+sliceOfAPI+strings.Replace(tc.policy, "BLOCK", tc.block, 1), "check -f -")
			if found := strings.Contains(stdout, "[service-address]"); found != (tc.want != "") || !strings.Contains(stdout, tc.want) {
				t.Errorf("got\n%s%swant\n%s", stdout, stderr, tc.want)
			}
		})
	}
}

// What explain -o policy prints allows the connection once it is applied, and nothing else is
// printed on standard output.
func TestPolicyForAConnection(t *testing.T) {
	endpoints := strings.Replace(endpointsOfAPI, "{ip: 172.18.0.2}", "{ip: 172.18.0.2}, {ip: 172.18.0.3}", 1)
	const closed = `---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: y, name: deny}
spec: {podSelector: {}, policyTypes: [Ingress, Egress]}
---
apiVersion: v1
kind: Pod
metadata: {namespace: y, name: c, labels: {app: c}}
spec: {nodeName: n1}
status: {phase: Running, podIPs: [{ip: 10.0.0.9}]}
`
	const admin = `---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: deny}
spec: {priority: 1, subject: {namespaces: {}}, egress: [{action: Deny, to: [{networks: [172.18.0.0/16]}]}]}
`
	for _, tc := range []struct {
		name, more, connection string
		code, then             int // exit codes before and after
		stdout, stderr         string
	}{
		{"the API server", endpoints, "x/a default/svc/kubernetes", 1, 0,
			"  # a -> 172.18.0.2 (service default/kubernetes), TCP 6443\n  # a -> 172.18.0.3 (service default/kubernetes), TCP 6443\n  - to:\n    - ipBlock:\n        cidr: 172.18.0.2/32\n    - ipBlock:\n        cidr: 172.18.0.3/32\n    ports:\n    - port: 6443\n",
			"x/a -> 172.18.0.2, TCP 6443: denied\n"},
		{"its name", endpoints, "x/a default/svc/kubernetes", 1, 0, "  name: allow-a-to-kubernetes\n", ""},
		{"its address", endpoints, "x/a 10.96.0.1 --port 443", 1, 0, "  name: allow-a-to-10-96-0-1\n", "policies see what stands behind its port 443"},
		{"pods behind a Service", "", "x/a 10.96.0.2 --port 81", 1, 0, "    ports:\n    - port: 9090\n", ""},
		{"what is allowed", "", "x/a x/b --port 8080", 0, 0, "", "No policy is needed.\n"},
		{"both ends", closed, "x/a y/c --port 80", 1, 0, "namespace: \"y\"\n", ""},
		{"a webhook", endpoints + closed, "default/svc/kubernetes y/c --port 80", 1, 0, "  - from:\n    - ipBlock:\n        cidr: 172.18.0.2/32\n", ""},
		{"what an administrator denies", endpoints + admin, "x/a default/svc/kubernetes", 1, 1, "", "Not to be allowed by a NetworkPolicy: a -> 172.18.0.2 (service default/kubernetes), TCP 6443: denied by egress of x/a: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			manifests := servicesOf + tc.more
			code, stdout, stderr := call(t, manifests, "explain "+tc.connection+" -o policy -f -")
			if code != tc.code || !strings.Contains(stdout, tc.stdout) || tc.stdout == "" && stdout != "" || !strings.Contains(stderr, tc.stderr) {
				t.Errorf("got %d\n%s%swant\n%s%s", code, stdout, stderr, tc.stdout, tc.stderr)
			}
			if code, again, _ := call(t, manifests+"---\n"+stdout, "explain "+tc.connection+" -f -"); code != tc.then {
				t.Errorf("with\n%sgot %d\n%s", stdout, code, again)
			}
		})
	}
	code, stdout, stderr := call(t, "", "explain x/a default/svc/kubernetes -o policy"+liveServices(t, everywhere, sliceOfAPI))
	if code != 1 || !strings.Contains(stdout, "cidr: 172.18.0.2/32\n") {
		t.Errorf("of a live cluster: got %d\n%s%s", code, stdout, stderr)
	}
}

// Expectations and comparisons name an address that no Service has as explain does.
func TestAddressesOfNoService(t *testing.T) {
	const inRange = "10.96.0.99 is in the range of Services 10.96.0.0/12, and no Service has it"
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.WriteFile("a.yaml", []byte(servicesOf+rangeOfServices+"---\n"+sliceOfAPI), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		stdin, command string
		code           int
		want           string
	}{
		"expected as a client":  {expectations("from: 10.96.0.99, to: x/b, port: 80, expect: deny"), "assert - -f a.yaml", 2, "-:4: expectations[0].from: " + inRange},
		"expected as a server":  {expectations("from: x/a, to: 10.96.0.99, port: 80, expect: deny"), "assert - -f a.yaml", 2, "-:4: expectations[0].to: " + inRange},
		"a cluster IP connects": {expectations("from: 10.96.0.1, to: x/b, port: 80, expect: allow"), "assert - -f a.yaml", 0, "ok    10.96.0.1 (service default/kubernetes) -> x/b, TCP 80: allowed\n"},
		"compared":              {"", "diff -f a.yaml -f a.yaml --address 10.96.0.99", 2, "--address=10.96.0.99: " + inRange},
		"outside":               {"", "diff -f a.yaml -f a.yaml --address 192.0.2.1", 0, ""},
		"from outside":          {expectations("from: outside, to: x/b, port: 80, expect: allow"), "assert - -f a.yaml", 0, "ok    outside -> x/b, TCP 80: allowed\n"},
		"to outside":            {expectations("from: x/a, to: outside, port: 80, expect: deny"), "assert - -f a.yaml", 1, "FAIL  x/a -> outside, TCP 80: denied\n"},
		"between addresses":     {expectations("from: outside, to: outside, port: 80, expect: deny"), "assert - -f a.yaml", 2, "-:4: expectations[0]: both sides are outside"},
		"in a group":            {expectations("from: {namespace: x, except: [outside]}, to: x/b, port: 80, expect: deny"), "assert - -f a.yaml", 2, `"outside": an address is not in a group of pods`},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := call(t, tc.stdin, tc.command)
			if code != tc.code || !strings.Contains(stdout+stderr, tc.want) {
				t.Errorf("got %d\n%s%swant\n%s", code, stdout, stderr, tc.want)
			}
		})
	}
}
