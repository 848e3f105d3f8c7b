package integration

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"sigs.k8s.io/kube-network-policies/pkg/agent/newpods"
	"sigs.k8s.io/kube-network-policies/pkg/base/httpserver"
	"sigs.k8s.io/kube-network-policies/pkg/base/tlskey"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
)

// With the rights that every agent has, agents find each other and their keys in the statuses of their
// pods, and one gets the new pods of the other.
func TestAgentsReportNewPods(t *testing.T) {
	plane := newest.start(t)
	install(t, plane)
	c := newCluster(t, plane)
	_, client := account(t, plane, namespace, agent)
	here, there := c.publishAgent(c.node, "127.0.0.20"), c.publishAgent(c.otherNode, "127.0.0.21")
	sandbox := clusterstate.Sandbox{Namespace: "x", Name: "new", UID: "uid", Addrs: []netip.Addr{netip.MustParseAddr("10.2.0.1")}}

	board := newpods.NewBoard()
	port := serveBoard(t, newpods.NewAgents(client.CoreV1().Pods(namespace), c.otherNode, there.certificate.Leaf), there, board)

	heard := make(chan []clusterstate.Sandbox, 100)
	asker := newpods.NewAsker(newpods.Config{
		Peers: newpods.Peers{
			Agents:      newpods.NewAgents(client.CoreV1().Pods(namespace), c.node, here.certificate.Leaf),
			Certificate: here.certificate,
			Port:        port,
		},
		NodesAt:    func(netip.Addr) []string { return []string{c.otherNode} },
		Set:        func(_ string, s []clusterstate.Sandbox) { heard <- s },
		Registerer: prometheus.NewRegistry(),
	})
	run(t, asker.Run)
	asker.Want(sandbox.Addrs[0])
	if s := <-heard; len(s) != 0 {
		t.Fatalf("heard %v, want a node without new pods", s)
	}
	board.Set([]clusterstate.Sandbox{sandbox})
	for s := range heard {
		if len(s) == 1 && s[0].Name == sandbox.Name {
			break
		}
	}
}

// publishedAgent is an agent whose pod's status publishes its key.
type publishedAgent struct {
	name, address string // of the pod
	key           string // file
	certificate   *tls.Certificate
	pod           *corev1.Pod
}

// publishAgent publishes the agent of a node until the test ends.
func (c *cluster) publishAgent(node, address string, args ...string) *publishedAgent {
	c.t.Helper()
	a := must[*publishedAgent](c.t)(publishAgent(c.t.Context(), c.client, filepath.Join(c.t.TempDir(), "key"), node, address, args...))
	c.t.Cleanup(func() {
		_ = c.client.CoreV1().Pods(namespace).Delete(context.Background(), a.name, *metav1.NewDeleteOptions(0))
	})
	return a
}

// publishAgent creates the pod of an agent on a node, with a file for its key and arguments, as the kubelet
// would show it at an address.
func publishAgent(ctx context.Context, client kubernetes.Interface, key, node, address string, args ...string) (*publishedAgent, error) {
	a := &publishedAgent{name: "agent-" + node, address: address, key: key}
	message, err := tlskey.Make(a.key)
	if err != nil {
		return nil, err
	}
	if a.certificate, err = tlskey.OfAgent(node, a.key); err != nil {
		return nil, err
	}
	pods := client.CoreV1().Pods(namespace)
	pod, err := pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: a.name, Labels: map[string]string{"app.kubernetes.io/name": agent}},
		Spec: corev1.PodSpec{
			NodeName: node, HostNetwork: true, ServiceAccountName: agent,
			InitContainers: []corev1.Container{{Name: "key", Image: "none"}},
			Containers:     []corev1.Container{{Name: agent, Image: "none", Args: args}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}},
		InitContainerStatuses: []corev1.ContainerStatus{{
			Name: "key", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: message}},
		}},
	}
	a.pod, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return a, err
}

// serveBoard serves a board at the address of an agent, and returns the port.
func serveBoard(t *testing.T, agents *newpods.Agents, a *publishedAgent, board *newpods.Board) (port string) {
	t.Helper()
	listener := must[net.Listener](t)(net.Listen("tcp", a.address+":0"))
	access := &httpserver.Access{Client: agents.Check, Certificate: httpserver.Fixed(a.certificate)}
	run(t, func(ctx context.Context) error {
		return httpserver.New(board, nil, prometheus.NewRegistry()).Run(ctx, listener, access)
	})
	_, port, _ = net.SplitHostPort(listener.Addr().String())
	return port
}

// run runs a loop until the test ends.
func run(t *testing.T, loop func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- loop(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
