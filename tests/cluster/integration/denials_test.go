package integration

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/pkg/base/tlskey"
	"sigs.k8s.io/kube-network-policies/pkg/status"
	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/controlplane"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// denialsInterval is the least time between two texts of a policy.
const denialsInterval = time.Minute

// denialsPatience is time for rounds in which an agent has no time to answer.
const denialsPatience = 5 * denialsInterval

// denialsOfBoth matches a text about both nodes.
var denialsOfBoth = func() *regexp.Regexp {
	const pair, other = "web to db-1, UDP 5432", "web to db-2, UDP 5432"
	return regexp.MustCompile(fmt.Sprintf(`^\d+ packets denied within an hour, the last at [0-9T:-]+Z: (%[1]s; %[2]s|%[2]s; %[1]s)\.$`, pair, other))
}()

// Users who may get policies of one namespace see in the condition Denials what agents on two
// nodes denied. The accounts have the rights that the chart gives them, the agents ask the
// API server who asks them, and the packets are real.
func TestAuthorsSeeDenials(t *testing.T) {
	labtest.Need(t)
	on(t, []*server{newest, statusOn}, func(t *testing.T, plane *controlplane.ControlPlane) {
		// A writer ends with the thread that started it, and a lab ends threads that it has
		// used, so this thread is locked.
		runtime.LockOSThread()
		install(t, plane)
		d := newDenialsCluster(t, plane)
		config, _ := account(t, plane, namespace, statusWriter)
		recorded := sum(d.recorded())
		started := time.Now()
		w := startWriter(t, config)
		// The text changes at most once a minute, however often packets are denied. A packet
		// that an agent did not report in time is in the next text.
		var texts []string
		whole := func() (whole []string) {
			for _, text := range texts {
				if denialsOfBoth.MatchString(text) {
					whole = append(whole, text)
				}
			}
			return whole
		}
		for len(whole()) < 2 {
			if text := d.text(); text != "" && !slices.Contains(texts, text) {
				texts = append(texts, text)
				if denialsOfBoth.MatchString(text) && len(whole()) == 1 {
					d.wantRecorded(text, recorded)
				}
			}
			if most := 1 + int(time.Since(started)/denialsInterval); len(texts) > most {
				t.Fatalf("%d texts in %v, want %d at most: %q", len(texts), time.Since(started), most, texts)
			}
			if time.Since(started) > denialsPatience {
				t.Fatalf("there are no two texts that match %s: %q", denialsOfBoth, texts)
			}
			if len(whole()) > 0 {
				d.send()
			}
			time.Sleep(100 * time.Millisecond)
		}
		texts = whole()
		if before, after := packetsIn(t, texts[0]), packetsIn(t, texts[1]); after <= before {
			t.Errorf("%d packets were denied, and then %d: %q", before, after, texts)
		}

		// Restarted agents have denied nothing. The writer then removes the condition.
		w.stop()
		d.startAgents(plane)
		startWriter(t, config)
		eventuallyWithin(t, denialsPatience, func() string {
			policy := d.policy()
			if c, ok := conditionsOf(t, policy, d.inStatus)[status.Denials]; ok || policy.GetAnnotations()[status.DenialsAnnotation] != "" {
				return fmt.Sprintf("the condition is there yet: %v, %v", c, policy.GetAnnotations())
			}
			return ""
		})
	})
}

// denialsCluster has a policy that denies what the pod web sends to db-1 and db-2. These are
// on two nodes, each with an agent.
type denialsCluster struct {
	*cluster
	inStatus  bool // where conditions are stored
	author    dynamic.ResourceInterface
	network   *lab.Lab
	web       *lab.Host
	databases []netip.AddrPort
	agents    []*lab.Agent
	sockets   []string
	published []*publishedAgent
	files     string
	port      uint16 // of the agents, at their addresses
}

func newDenialsCluster(t *testing.T, plane *controlplane.ControlPlane) *denialsCluster {
	t.Helper()
	d := &denialsCluster{cluster: newCluster(t, plane), files: t.TempDir(), inStatus: plane == statusOn.plane}
	var err error
	if d.network, err = lab.New(t.Context(), lab.Config{Nodes: 2}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.network.Close)
	nodes := d.network.Nodes
	pods := must[[]*lab.Pod](t)(d.network.AddPods(t.Context(),
		lab.NewPod(d.namespace, "web", nodes[0].Name, nil), lab.NewPod(d.namespace, "db-1", nodes[0].Name, nil), lab.NewPod(d.namespace, "db-2", nodes[1].Name, nil)))
	for i, node := range []string{d.node, d.node, d.otherNode} {
		d.createPod(pods[i].Object.Name, node, pods[i].Addr(lab.IPv4).String())
	}
	d.web = pods[0].Host
	for _, pod := range pods[1:] {
		d.databases = append(d.databases, netip.AddrPortFrom(pod.Addr(lab.IPv4), 5432))
	}
	must[*networkingv1.NetworkPolicy](t)(d.client.NetworkingV1().NetworkPolicies(d.namespace).Create(t.Context(), &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}},
	}, metav1.CreateOptions{}))
	t.Cleanup(func() { d.deletePolicy(context.Background(), "db") })
	d.createAuthor(plane)
	for _, node := range nodes {
		forward(t, node, plane.Address())
	}
	d.publishAgents()
	d.startAgents(plane)
	// Packets that are denied before an agent has the policy do not count for it.
	eventually(t, func() string {
		d.send()
		if counts := d.recorded(); slices.Contains(counts, 0) {
			return fmt.Sprintf("agents have recorded %d denied packets", counts)
		}
		return ""
	})
	return d
}

// createAuthor makes an account that may get the NetworkPolicies of the namespace, and
// nothing else.
func (d *denialsCluster) createAuthor(plane *controlplane.ControlPlane) {
	d.t.Helper()
	meta := metav1.ObjectMeta{Name: "author"}
	must[*corev1.ServiceAccount](d.t)(d.client.CoreV1().ServiceAccounts(d.namespace).Create(d.t.Context(), &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{}))
	must[*rbacv1.Role](d.t)(d.client.RbacV1().Roles(d.namespace).Create(d.t.Context(), &rbacv1.Role{
		ObjectMeta: meta,
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{networkingv1.GroupName}, Resources: []string{"networkpolicies"}, Verbs: []string{"get"}}},
	}, metav1.CreateOptions{}))
	must[*rbacv1.RoleBinding](d.t)(d.client.RbacV1().RoleBindings(d.namespace).Create(d.t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: meta,
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: d.namespace, Name: meta.Name}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
	}, metav1.CreateOptions{}))
	config := must[*rest.Config](d.t)(plane.ServiceAccount(d.t.Context(), d.namespace, meta.Name))
	client := must[*dynamic.DynamicClient](d.t)(dynamic.NewForConfig(config))
	d.author = client.Resource(networkingv1.SchemeGroupVersion.WithResource("networkpolicies")).Namespace(d.namespace)
}

// publishAgents writes the pods of the agents. Their addresses belong to this machine and
// forward to the agents.
func (d *denialsCluster) publishAgents() {
	d.t.Helper()
	for i, node := range []string{d.node, d.otherNode} {
		address := fmt.Sprintf("127.0.0.%d", 2+i)
		listener := must[net.Listener](d.t)(net.Listen("tcp", fmt.Sprintf("%s:%d", address, d.port)))
		d.t.Cleanup(func() { _ = listener.Close() })
		d.port = uint16(listener.Addr().(*net.TCPAddr).Port)
		at := d.network.Nodes[i]
		go relay(listener, func() (net.Conn, error) { return at.Dial(context.Background(), lab.TCP, answersOf(at)) })
		d.published = append(d.published, d.publishAgent(node, address, fmt.Sprintf("--status-bind-address=:%d", d.port)))
	}
}

// answersOf returns the address where a node's agent answers the status writer.
func answersOf(node *lab.Node) netip.AddrPort { return netip.AddrPortFrom(node.Addr(lab.IPv4), 9082) }

// startAgents starts an agent on each node after the running ones have ended.
func (d *denialsCluster) startAgents(plane *controlplane.ControlPlane) {
	d.t.Helper()
	for _, a := range d.agents {
		if err := a.Stop(d.t.Context()); err != nil {
			d.t.Fatal(err)
		}
	}
	d.agents, d.sockets = nil, nil
	kubeconfig := filepath.Join(d.files, "kubeconfig")
	config, _ := account(d.t, plane, namespace, agent)
	if err := controlplane.Kubeconfig(config, kubeconfig); err != nil {
		d.t.Fatal(err)
	}
	for i, name := range []string{d.node, d.otherNode} {
		node := d.network.Nodes[i]
		socket := filepath.Join(d.files, node.Name)
		a, err := node.StartAgent(lab.AgentConfig{
			Binary: program(d.t, "kube-network-policies"),
			Args: []string{
				"--kubeconfig=" + kubeconfig, "--hostname-override=" + name, "--probe-socket=" + socket,
				"--status-bind-address=" + answersOf(node).String(),
			},
			Run: map[string]string{strings.TrimPrefix(tlskey.File, "/run/"): string(must[[]byte](d.t)(os.ReadFile(d.published[i].key)))},
		})
		if err != nil {
			d.t.Fatal(err)
		}
		d.t.Cleanup(func() {
			if d.t.Failed() {
				d.t.Logf("log of the agent on %s:\n%s", name, a.Log())
			}
			a.Kill() // before the folders are removed that it may write
		})
		d.agents, d.sockets = append(d.agents, a), append(d.sockets, socket)
	}
}

// send sends a datagram to each database.
func (d *denialsCluster) send() {
	d.t.Helper()
	for _, to := range d.databases {
		conn := must[net.Conn](d.t)(d.web.Dial(d.t.Context(), lab.UDP, to))
		_, err := conn.Write([]byte("denied"))
		conn.Close()
		if err != nil {
			d.t.Fatal(err)
		}
	}
}

// recorded returns how many packets each agent has recorded as denied by the policy.
func (d *denialsCluster) recorded() []int {
	d.t.Helper()
	counts := make([]int, len(d.agents))
	for i, socket := range d.sockets {
		text, err := d.network.Nodes[i].Run(d.t.Context(), "", program(d.t, "kube-network-policies"), "flows", "--denied", "--probe-socket="+socket)
		if err != nil {
			continue // it starts
		}
		if err := flows.Decode(strings.NewReader(text), func(r *flows.Record) error {
			if r.Type == flows.TypeFlow && r.Policy != nil && r.Policy.Name == "db" {
				counts[i] += int(r.Count)
			}
			return nil
		}); err != nil {
			d.t.Fatal(err)
		}
	}
	return counts
}

// wantRecorded checks that the count in a text is at least before, and that agents have
// recorded as many.
func (d *denialsCluster) wantRecorded(text string, before int) {
	d.t.Helper()
	n := packetsIn(d.t, text)
	if n < before {
		d.t.Errorf("the author sees %q; agents had recorded %d packets before", text, before)
	}
	eventually(d.t, func() string {
		if now := sum(d.recorded()); now < n {
			return fmt.Sprintf("the author sees %q; agents have recorded %d packets", text, now)
		}
		return ""
	})
}

// policy returns the policy as its author sees it.
func (d *denialsCluster) policy() *unstructured.Unstructured {
	d.t.Helper()
	return must[*unstructured.Unstructured](d.t)(d.author.Get(d.t.Context(), "db", metav1.GetOptions{}))
}

// text returns the message of the condition that an author sees, empty if it is not there.
func (d *denialsCluster) text() string {
	d.t.Helper()
	c := conditionsOf(d.t, d.policy(), d.inStatus)[status.Denials]
	if c.Message != "" && (c.Status != metav1.ConditionTrue || c.Reason != "PacketsDenied") {
		d.t.Errorf("the condition is %+v", c)
	}
	return c.Message
}

func sum(counts []int) (sum int) {
	for _, n := range counts {
		sum += n
	}
	return sum
}

// packetsIn returns the count in a message.
func packetsIn(t *testing.T, text string) (n int) {
	t.Helper()
	if _, err := fmt.Sscanf(text, "%d packets denied", &n); err != nil {
		t.Errorf("%q: %v", text, err)
	}
	return n
}
