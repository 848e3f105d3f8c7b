package edges

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// outside is the client in the control plane's network, which is no node and no pod.
const outside = "outside"

// A way is a client and a destination. Some ways lead to the server from its own node
// or from itself: these are always open.
type way struct {
	client, to string // to is an address and port
	kind       string
	always     bool
}

func (w way) String() string { return w.client + " to " + w.kind + " " + w.to }

// Every way to a pod, through Services, NodePorts and hostPorts: what the policy
// allows gets there, and what it denies does not. First without a policy: the ways that
// are open then are the ones that count.
func TestWaysToAPod(t *testing.T) {
	namespace := newNamespace(t)
	start(t, namespace,
		pod{"server", "n1", "{app: server}", fmt.Sprintf(`
  containers:
  - {name: main, image: %s, imagePullPolicy: IfNotPresent, args: [netexec, --http-port=8080], ports: [{containerPort: 8080, hostPort: 18080}]}`, agnhost)},
		pod{"near", "n1", "{app: client}", container(agnhost, "pause")},
		pod{"far", "n2", "{app: client}", container(agnhost, "pause")},
		pod{"host-near", "n1", "{app: host}", "  hostNetwork: true\n" + container(agnhost, "pause")},
		pod{"host-far", "n2", "{app: host}", "  hostNetwork: true\n" + container(agnhost, "pause")})
	service := func(name, spec string) {
		apply(t, fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: %s}\nspec: {selector: {app: server}, ipFamilyPolicy: PreferDualStack, ports: [{port: 80, targetPort: 8080}], %s}\n", name, namespace, spec))
	}
	service("cluster", "type: NodePort, externalTrafficPolicy: Cluster")
	service("local", "type: NodePort, externalTrafficPolicy: Local")
	nodePort := func(name string) int {
		var port int
		if _, err := fmt.Sscan(kubectl(t, "-n", namespace, "get", "service", name, "-o", "jsonpath={.spec.ports[0].nodePort}"), &port); err != nil {
			t.Fatal(err)
		}
		return port
	}
	clusterPort, localPort := nodePort("cluster"), nodePort("local")
	nodes := make(map[string][]string)
	for _, node := range []string{"n1", "n2"} {
		nodes[node] = addresses(t, ".status.addresses[?(@.type=='InternalIP')].address", "node", node)
	}

	var ways []way
	for _, client := range []string{"near", "far", "host-near", "host-far", "server", outside} {
		own := client == "host-near" || client == "server"
		add := func(kind string, port int, always bool, addresses []string) {
			for _, address := range addresses {
				ways = append(ways, way{client, hostPort(address, port), kind, always})
			}
		}
		if client != "server" {
			add("pod", 8080, own, podAddresses(t, namespace, "server"))
		}
		if client != outside {
			add("Service", 80, own, addresses(t, ".spec.clusterIPs[*]", "-n", namespace, "service", "cluster"))
		}
		if client == "server" {
			continue
		}
		add("NodePort of its node", clusterPort, own, nodes["n1"])
		add("NodePort of another node", clusterPort, false, nodes["n2"])
		add("NodePort (Local) of its node", localPort, own, nodes["n1"])
		add("hostPort", 18080, own, nodes["n1"])
	}

	// connect tries all ways at once and returns the ones that are open.
	connect := func() []way {
		var open []way
		for _, client := range []string{"near", "far", "host-near", "host-far", "server", outside} {
			var script strings.Builder
			for i, w := range ways {
				if w.client == client {
					fmt.Fprintf(&script, "(curl -gs -o /dev/null -m 5 http://%s/hostname && echo %d) &\n", w.to, i)
				}
			}
			script.WriteString("wait\n")
			args := []string{"-n", namespace, "exec", client, "--", "sh", "-c", script.String()}
			where := "kubectl"
			if client == outside {
				where, args = "cp", []string{"bash", "-c", script.String()}
			}
			output, err := attempt(where, args...)
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range strings.Fields(output) {
				var i int
				if _, err := fmt.Sscan(line, &i); err != nil {
					t.Fatalf("%q: %v", output, err)
				}
				open = append(open, ways[i])
			}
		}
		return open
	}
	expect := func(t *testing.T, want func(way) bool) {
		t.Helper()
		eventually(t, "ways", func() error {
			var wrong []string
			open := connect()
			for _, w := range ways {
				if slices.Contains(open, w) != want(w) {
					wrong = append(wrong, fmt.Sprintf("%s: open is %v", w, !want(w)))
				}
			}
			if len(wrong) > 0 {
				return fmt.Errorf("%s", strings.Join(wrong, "; "))
			}
			return nil
		})
	}

	// A way that kube-proxy or the CNI plugin of this cluster does not have is left out.
	var all []way
	eventually(t, "ways without a policy", func() error {
		all = connect()
		if len(all)*10 < len(ways)*8 {
			return fmt.Errorf("%d of %d are open", len(all), len(ways))
		}
		return nil
	})
	for _, w := range ways {
		if !slices.Contains(all, w) {
			t.Logf("not open without a policy: %s", w)
		}
	}
	ways = all

	if !withAgent {
		return
	}
	t.Run("deny all", func(t *testing.T) {
		policy(t, namespace, "server", `{podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress]}`)
		expect(t, func(w way) bool { return w.always })
	})
	// A connection to a NodePort of another node has that node's address.
	t.Run("allow pods and the other node", func(t *testing.T) {
		var blocks strings.Builder
		for _, address := range nodes["n2"] {
			fmt.Fprintf(&blocks, ", {ipBlock: {cidr: %q}}", address+map[bool]string{true: "/128", false: "/32"}[strings.Contains(address, ":")])
		}
		policy(t, namespace, "server", `{podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: client}}}`+blocks.String()+`], ports: [{port: 8080}]}]}`)
		expect(t, func(w way) bool { return w.client != outside || w.kind == "NodePort of another node" })
	})
	t.Run("allow another port", func(t *testing.T) {
		policy(t, namespace, "server", `{podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress], ingress: [{ports: [{port: 80}]}]}`)
		expect(t, func(w way) bool { return w.always })
	})
	// Host-network pods are no subjects: this policy selects them all.
	t.Run("host-network pods are not selected", func(t *testing.T) {
		kubectl(t, "-n", namespace, "delete", "networkpolicy", "server")
		policy(t, namespace, "hosts", `{podSelector: {matchLabels: {app: host}}, policyTypes: [Ingress, Egress]}`)
		expect(t, func(way) bool { return true })
	})
}

// An address goes from one pod to the next, as with Jobs. Each pod has its own rights
// from its first packet on.
func TestAddressesAreUsedAgain(t *testing.T) {
	namespace := newNamespace(t)
	start(t, namespace, pod{"server", "n1", "{app: server}", container(prober, "serve")})
	policy(t, namespace, "server", `{podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {job: allowed}}}]}]}`)
	var targets []string
	for _, address := range podAddresses(t, namespace, "server") {
		targets = append(targets, "tcp://"+hostPort(address, 8080), "udp://"+hostPort(address, 8080))
	}
	// Pods of n2 get the lowest free address again and again.
	seen := make(map[string]bool)
	reused := 0
	for i := range 6 {
		job := []string{"allowed", "denied"}[i%2]
		args := []string{"probe", "-interval=50ms", "-duration=3s", "-timeout=10s"}
		for _, target := range targets {
			args = append(args, "-"+job+"="+target)
		}
		run(t, "n2", "sh", "-c", "rm -f /var/lib/cni/networks/*/last_reserved_ip.*")
		name := fmt.Sprintf("job-%d", i)
		apply(t, pod{name, "n2", "{job: " + job + "}", "  restartPolicy: Never\n" + container(prober, args...)}.manifest(namespace))
		phase := ""
		eventually(t, "end of "+name, func() error {
			phase = kubectl(t, "-n", namespace, "get", "pod", name, "-o", "jsonpath={.status.phase}")
			if phase != "Succeeded" && phase != "Failed" {
				return fmt.Errorf("phase %s", phase)
			}
			return nil
		})
		address := strings.Join(podAddresses(t, namespace, name), " ")
		if seen[address] {
			reused++
		}
		seen[address] = true
		log := kubectl(t, "-n", namespace, "logs", name)
		keep(t, name+".json", log)
		if withAgent || job == "allowed" {
			if phase != "Succeeded" {
				t.Errorf("%s pod %d with the address %s: %s", job, i, address, log)
			}
		}
		kubectl(t, "-n", namespace, "delete", "pod", name, "--wait=true")
	}
	if reused == 0 {
		t.Error("no address was used again: the test has shown nothing")
	}
}

// Names are looked up over the Service of the cluster's DNS, by pods that may reach
// nothing else, both families of a name at once, as programs do.
func TestNamesUnderEgressPolicies(t *testing.T) {
	namespace := newNamespace(t)
	policy(t, namespace, "names", `{podSelector: {}, policyTypes: [Ingress, Egress], egress: [{to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}, podSelector: {matchLabels: {k8s-app: kube-dns}}}], ports: [{protocol: UDP, port: 53}, {protocol: TCP, port: 53}]}]}`)
	start(t, namespace,
		pod{"client-n1", "n1", "{app: client}", container(agnhost, "pause")},
		pod{"client-n2", "n2", "{app: client}", container(agnhost, "pause")})
	const name, lookups = "kubernetes.default.svc.cluster.local", 100
	for _, client := range []string{"client-n1", "client-n2"} {
		// Each lookup is one datagram for each family, sent once.
		output := kubectl(t, "-n", namespace, "exec", client, "--", "bash", "-c", fmt.Sprintf(`
one() { dig +tries=1 +timeout=4 +noall +comments +stats %[1]s "$1"; }
for i in $(seq %[2]d); do one A & one AAAA & wait; done`, name, lookups))
		answered, longest := strings.Count(output, "status: NOERROR"), 0
		for line := range strings.Lines(output) {
			var took int
			if n, _ := fmt.Sscanf(line, ";; Query time: %d msec", &took); n == 1 {
				longest = max(longest, took)
			}
		}
		t.Logf("%s: %d of %d lookups answered at the first try, the longest in %d ms", client, answered, 2*lookups, longest)
		if answered != 2*lookups {
			t.Errorf("%s: %d of %d lookups were answered", client, answered, 2*lookups)
		}
	}
}
