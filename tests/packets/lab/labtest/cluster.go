package labtest

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
)

// Cluster is a lab with manifests that its agents watch.
type Cluster struct {
	*lab.Lab
	Manifests lab.Manifests
	Hosts     map[string]*lab.Host // nodes, pods and other hosts, by name
	Pods      map[string]*lab.Pod

	// OneCPU is passed on to the lab.AgentConfig of each agent.
	OneCPU bool

	// Rejects is set if the agents may answer denied packets.
	Rejects bool
}

// ports are the TCP and UDP ports of pods and nodes.
var ports = []uint16{80, 81, 8080}

// NewCluster returns nodes without agents. Its namespaces x, y and z have a label ns each.
// CreatePods describes the format of pods. Everything ends with the test.
func NewCluster(t *testing.T, nodes int, pods ...string) *Cluster {
	t.Helper()
	Need(t)
	l, err := lab.New(t.Context(), lab.Config{Nodes: nodes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	manifests, err := lab.NewManifests(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{Lab: l, Manifests: manifests, Hosts: make(map[string]*lab.Host), Pods: make(map[string]*lab.Pod)}
	var objects []runtime.Object
	for _, node := range l.Nodes {
		objects = append(objects, node.Object())
		c.Serve(t, node.Host)
	}
	for _, name := range []string{"x", "y", "z"} {
		objects = append(objects, lab.NewNamespace(name, map[string]string{"ns": name}))
	}
	c.Put(t, "cluster", objects...)
	c.CreatePods(t, pods...)
	return c
}

// Serve registers a host by its name and lets it answer probes.
func (c *Cluster) Serve(t *testing.T, host *lab.Host) {
	t.Helper()
	if err := host.Serve(ports...); err != nil {
		t.Fatal(err)
	}
	c.Hosts[host.Name] = host
}

// CreatePods gives pods a network and adds them to the manifests. A pod is
// "NAMESPACE/NAME@NODE-NUMBER LABEL=VALUE …".
func (c *Cluster) CreatePods(t *testing.T, specs ...string) {
	t.Helper()
	var objects []*corev1.Pod
	for _, spec := range specs {
		objects = append(objects, NewPod(spec))
	}
	for _, pod := range c.Attach(t, objects...) {
		c.Put(t, PodFile(pod.Name), pod.Object)
	}
}

// Attach gives pods a network without changing the manifests.
func (c *Cluster) Attach(t *testing.T, objects ...*corev1.Pod) []*lab.Pod {
	t.Helper()
	pods, err := c.Lab.AddPods(t.Context(), objects...)
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods {
		c.Serve(t, pod.Host)
		c.Pods[pod.Name] = pod
	}
	return pods
}

// PodFile is the name under which CreatePods stores the pod "NAMESPACE/NAME".
func PodFile(name string) string { return "pod-" + strings.ReplaceAll(name, "/", "-") }

// NewPod parses the format of CreatePods. The pod declares the ports web (TCP 80) and web
// (UDP 81).
func NewPod(spec string) *corev1.Pod {
	fields := strings.Fields(spec)
	path, node, _ := strings.Cut(fields[0], "@")
	namespace, name, _ := strings.Cut(path, "/")
	labels := make(map[string]string)
	for _, label := range fields[1:] {
		key, value, _ := strings.Cut(label, "=")
		labels[key] = value
	}
	return lab.NewPod(namespace, name, "node-"+node, labels,
		corev1.ContainerPort{Name: "web", ContainerPort: 80, Protocol: corev1.ProtocolTCP},
		corev1.ContainerPort{Name: "web", ContainerPort: 81, Protocol: corev1.ProtocolUDP})
}

// Put writes objects as one manifest and replaces the manifest of the same name.
func (c *Cluster) Put(t *testing.T, name string, objects ...runtime.Object) {
	t.Helper()
	if err := c.Manifests.Put(name, objects...); err != nil {
		t.Fatal(err)
	}
}

// Apply writes policies. They are removed when the test ends.
func (c *Cluster) Apply(t *testing.T, name, policies string) {
	t.Helper()
	c.Replace(t, name, policies)
	t.Cleanup(func() { c.Manifests.Remove(name) })
}

// Enforce applies policies and returns when an agent enforces them on all packets. Missing
// answers do not prove that: on a busy machine an answer may be late.
func (c *Cluster) Enforce(t *testing.T, agent *lab.Agent, name, policies string) {
	t.Helper()
	Enforced(t, agent, func() { c.Apply(t, name, policies) })
}

// Replace writes policies and replaces those of the same name.
func (c *Cluster) Replace(t *testing.T, name, policies string) {
	t.Helper()
	if err := c.Manifests.Write(name, policies); err != nil {
		t.Fatal(err)
	}
}

// Start starts an agent on every node and waits until all are ready.
func (c *Cluster) Start(t *testing.T, args ...string) []*lab.Agent {
	t.Helper()
	var agents []*lab.Agent
	for _, node := range c.Nodes {
		agents = append(agents, c.StartOn(t, node, args...))
	}
	for _, agent := range agents {
		WaitReady(t, agent)
	}
	return agents
}

// StartOn starts an agent on one node. Its log is shown if the test fails.
func (c *Cluster) StartOn(t *testing.T, node *lab.Node, args ...string) *lab.Agent {
	t.Helper()
	agent, err := node.StartAgent(lab.AgentConfig{Binary: AgentBinary, Manifests: c.Manifests.Dir(), Args: args, OneCPU: c.OneCPU})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the agent on %s (%v):\n%s", node.Name, args, agent.Log())
		}
		agent.Kill() // before the folders are removed that it may write
	})
	return agent
}

// WaitReady waits until the agent reports that it is ready.
func WaitReady(t *testing.T, agent *lab.Agent) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), ReadyTimeout)
	defer cancel()
	if err := agent.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
}

// Addrs returns the addresses of a host, or the address itself.
func (c *Cluster) Addrs(t *testing.T, name string) []netip.Addr {
	t.Helper()
	if host, ok := c.Hosts[name]; ok {
		return host.Addrs
	}
	addr, err := netip.ParseAddr(name)
	if err != nil {
		t.Fatalf("%q is neither a host nor an address", name)
	}
	return []netip.Addr{addr}
}

// Policy returns a NetworkPolicy as YAML.
func Policy(namespace, name, spec string) string {
	return fmt.Sprintf("---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {namespace: %q, name: %q}\nspec: %s\n", namespace, name, spec)
}

// WithAdmin is the flag with which an agent enforces administrators' policies.
const WithAdmin = "--admin-policies"

// Admin returns an AdminNetworkPolicy for the pods app=web of any namespace.
func Admin(name, rules string) string {
	return fmt.Sprintf("---\napiVersion: policy.networking.k8s.io/v1alpha1\nkind: AdminNetworkPolicy\nmetadata: {name: %q}\n"+
		"spec: {priority: 10, subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}}, %s}\n", name, rules)
}
