// Package netns asks the kernel whether it agrees: its tests run the agent's
// binary on nodes made of network namespaces and see what becomes of real
// packets. They need root, nft and ip; without them they are skipped unless
// NETNS_REQUIRED is set.
package netns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"sigs.k8s.io/kube-network-policies/tests/lab"
)

// Bounds of the tests.
const (
	readyTimeout  = time.Minute      // for an agent to be ready, under a flood too
	changeTimeout = 10 * time.Second // for a change to be in force

	silence    = 200 * time.Millisecond // without an answer counts as blocked, at first
	maxSilence = time.Second            // and at last
)

// agentBinary is the agent under test: that of the variable AGENT_BINARY, for
// machines without Go, or else one that TestMain builds.
var agentBinary string

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

func buildAndRun(m *testing.M) int {
	if agentBinary = os.Getenv("AGENT_BINARY"); agentBinary != "" || lab.Check() != nil {
		return m.Run() // without a lab needLab tells in each test
	}
	dir, err := os.MkdirTemp("", "netns-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if agentBinary, err = lab.BuildAgent(context.Background(), dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// needLab skips a test where a lab cannot be, unless that is forbidden.
func needLab(t *testing.T) {
	t.Helper()
	err := lab.Check()
	switch {
	case err == nil:
	case errors.Is(err, errors.ErrUnsupported) && os.Getenv("NETNS_REQUIRED") == "":
		t.Skip(err)
	default:
		t.Fatal(err)
	}
}

// cluster is a lab with manifests that its agents watch.
type cluster struct {
	*lab.Lab
	manifests lab.Manifests
	hosts     map[string]*lab.Host // nodes, pods and others, by name
	pods      map[string]*lab.Pod
}

// ports are those that pods and nodes answer on, by TCP and UDP.
var ports = []uint16{80, 81, 8080}

// newCluster returns nodes without agents. Its namespaces x, y and z have a
// label ns each; a change of pods, given as "NAMESPACE/NAME@NODE-NUMBER LABEL=VALUE
// …", adds to it.
func newCluster(t *testing.T, nodes int, pods ...string) *cluster {
	t.Helper()
	needLab(t)
	l, err := lab.New(t.Context(), lab.Config{Nodes: nodes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	manifests, err := lab.NewManifests(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{Lab: l, manifests: manifests, hosts: make(map[string]*lab.Host), pods: make(map[string]*lab.Pod)}
	var objects []runtime.Object
	for _, node := range l.Nodes {
		objects = append(objects, node.Object())
		c.addHost(t, node.Host)
	}
	for _, name := range []string{"x", "y", "z"} {
		objects = append(objects, lab.NewNamespace(name, map[string]string{"ns": name}))
	}
	c.put(t, "cluster", objects...)
	c.addPods(t, pods...)
	return c
}

// addHost makes a host known and lets it answer.
func (c *cluster) addHost(t *testing.T, host *lab.Host) {
	t.Helper()
	if err := host.Serve(ports...); err != nil {
		t.Fatal(err)
	}
	c.hosts[host.Name] = host
}

// addPods gives pods a network and tells the agents of them.
func (c *cluster) addPods(t *testing.T, specs ...string) {
	t.Helper()
	var objects []*corev1.Pod
	for _, spec := range specs {
		objects = append(objects, newPod(spec))
	}
	for _, pod := range c.attach(t, objects...) {
		c.put(t, podFile(pod.Name), pod.Object)
	}
}

// attach gives pods a network and tells nobody.
func (c *cluster) attach(t *testing.T, objects ...*corev1.Pod) []*lab.Pod {
	t.Helper()
	pods, err := c.AddPods(t.Context(), objects...)
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods {
		c.addHost(t, pod.Host)
		c.pods[pod.Name] = pod
	}
	return pods
}

func podFile(name string) string { return "pod-" + strings.ReplaceAll(name, "/", "-") }

// newPod reads "x/web@1 app=web". Each pod declares the ports web (TCP 80) and
// web (UDP 81).
func newPod(spec string) *corev1.Pod {
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

func (c *cluster) put(t *testing.T, name string, objects ...runtime.Object) {
	t.Helper()
	if err := c.manifests.Put(name, objects...); err != nil {
		t.Fatal(err)
	}
}

// apply writes policies, which are removed when the test ends.
func (c *cluster) apply(t *testing.T, name, policies string) {
	t.Helper()
	c.replace(t, name, policies)
	t.Cleanup(func() { c.manifests.Remove(name) })
}

// replace writes policies in place of those of that name.
func (c *cluster) replace(t *testing.T, name, policies string) {
	t.Helper()
	if err := c.manifests.Write(name, policies); err != nil {
		t.Fatal(err)
	}
}

// start starts an agent on every node and waits until all are ready.
func (c *cluster) start(t *testing.T, args ...string) []*lab.Agent {
	t.Helper()
	var agents []*lab.Agent
	for _, node := range c.Nodes {
		agents = append(agents, c.startOn(t, node, args...))
	}
	for _, agent := range agents {
		waitReady(t, agent)
	}
	return agents
}

// startOn starts an agent on one node. Its log is shown if the test fails.
func (c *cluster) startOn(t *testing.T, node *lab.Node, args ...string) *lab.Agent {
	t.Helper()
	agent, err := node.StartAgent(lab.AgentConfig{Binary: agentBinary, Manifests: c.manifests.Dir(), Args: args})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the agent on %s (%v) says:\n%s", node.Name, args, agent.Log())
		}
	})
	return agent
}

func waitReady(t *testing.T, agent *lab.Agent) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), readyTimeout)
	defer cancel()
	if err := agent.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
}

// expectation is what a probe should find.
type expectation struct {
	from, to string // names of hosts; to may be an address
	proto    lab.Proto
	port     uint16
	reaches  bool
}

// yes expects an answer, and no expects silence, for "tcp/80", "udp/80" or "icmp".
func yes(from, to, what string) expectation { return newExpectation(from, to, what, true) }
func no(from, to, what string) expectation  { return newExpectation(from, to, what, false) }

func newExpectation(from, to, what string, reaches bool) expectation {
	proto, number, _ := strings.Cut(what, "/")
	var port uint16
	fmt.Sscan(number, &port)
	return expectation{from, to, lab.Proto(strings.ToUpper(proto)), port, reaches}
}

// outcome is silence where e does not reach: policy never says no aloud.
func (e expectation) outcome() lab.Outcome {
	if e.reaches {
		return lab.Connected
	}
	return lab.TimedOut
}

func (e expectation) String() string {
	word := map[bool]string{true: "reaches", false: "does not reach"}[e.reaches]
	return fmt.Sprintf("%s %s %s at %s/%d", e.from, word, e.to, e.proto, e.port)
}

// expect probes over both families, and tries again what is not as expected
// until a change had time to be in force. When all is as expected it is probed
// once more, because what was true before the change may have been seen then. At
// least one expectation should become true by the change, or nothing is waited
// for.
func (c *cluster) expect(t *testing.T, expectations ...expectation) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), changeTimeout)
	defer cancel()
	c.probeAll(ctx, t, expectations)
	if t.Failed() {
		return
	}
	c.probeAll(ctx, t, expectations)
}

// probeAll probes everything at the same time.
func (c *cluster) probeAll(ctx context.Context, t *testing.T, expectations []expectation) {
	t.Helper()
	var wg sync.WaitGroup
	for _, e := range expectations {
		for _, to := range c.addrs(t, e.to) {
			wg.Go(func() {
				if got := c.probe(ctx, t, e, to); got != e.outcome() {
					t.Errorf("want: %s (%s); got: %s", e, to, got)
				}
			})
		}
	}
	wg.Wait()
}

// probe tries until the outcome is as expected or ctx ends. It waits longer for
// an answer with every try: a change is seen soon, and a busy machine has time.
func (c *cluster) probe(ctx context.Context, t *testing.T, e expectation, to netip.Addr) lab.Outcome {
	var got lab.Answer
	timeout := silence
	lab.Poll(ctx, func() (bool, error) {
		var err error
		got, err = c.hosts[e.from].Probe(ctx, e.proto, netip.AddrPortFrom(to, e.port), timeout)
		if err != nil {
			t.Errorf("%s (%s): %v", e, to, err)
			return false, err
		}
		if e.reaches {
			timeout = min(2*timeout, maxSilence)
		}
		return got.Outcome == e.outcome(), nil
	})
	return got.Outcome
}

// addrs returns the addresses of a host, or the address itself.
func (c *cluster) addrs(t *testing.T, name string) []netip.Addr {
	t.Helper()
	if host, ok := c.hosts[name]; ok {
		return host.Addrs
	}
	addr, err := netip.ParseAddr(name)
	if err != nil {
		t.Fatalf("%q is neither a host nor an address", name)
	}
	return []netip.Addr{addr}
}
