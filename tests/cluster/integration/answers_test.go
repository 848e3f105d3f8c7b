package integration

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"sigs.k8s.io/kube-network-policies/pkg/base/tlskey"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/status"
	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/controlplane"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// The status writer asks agents on two nodes what is in force. All have the rights that the chart gives
// them, and the agents ask the API server who asks them.
func TestWriterAsksAgents(t *testing.T) {
	labtest.Need(t)
	on(t, []*server{newest, statusOn}, func(t *testing.T, plane *controlplane.ControlPlane) {
		// A writer ends with the thread that started it, and a lab ends threads that it has used.
		runtime.LockOSThread()
		install(t, plane)
		c := newCluster(t, plane)
		network, err := lab.New(t.Context(), lab.Config{Nodes: 2})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(network.Close)
		c.startAgent(plane, network.Nodes[0], c.node, "127.0.0.2")
		c.startAgent(plane, network.Nodes[1], c.otherNode, "127.0.0.3")
		must[*networkingv1.NetworkPolicy](t)(c.client.NetworkingV1().NetworkPolicies(c.namespace).Create(t.Context(), &networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "db", Annotations: map[string]string{compile.ReportAnnotation: compile.ReportEnforced}},
		}, metav1.CreateOptions{}))
		t.Cleanup(func() { c.deletePolicy(context.Background(), "db") })
		config, _ := account(t, plane, namespace, statusWriter)
		startWriter(t, config)
		shown := policies(t, plane, c.namespace)
		eventually(t, func() string {
			db := must[*unstructured.Unstructured](t)(shown.Get(t.Context(), "db", metav1.GetOptions{}))
			got := conditionsOf(t, db, plane == statusOn.plane)[status.Enforced]
			if !strings.HasPrefix(got.Message, "In force on 2 of 2 nodes") {
				return fmt.Sprintf("the condition is %+v", got)
			}
			return ""
		})
	})
}

// startAgent starts an agent on a node of a lab. Its pod has an address of this machine, which forwards to
// the agent.
func (c *cluster) startAgent(plane *controlplane.ControlPlane, node *lab.Node, name, address string) {
	c.t.Helper()
	forward(c.t, node, plane.Address())
	listener := must[net.Listener](c.t)(net.Listen("tcp", address+":0"))
	c.t.Cleanup(func() { _ = listener.Close() })
	answers := netip.AddrPortFrom(node.Addr(lab.IPv4), 9082)
	go relay(listener, func() (net.Conn, error) { return node.Dial(context.Background(), lab.TCP, answers) })
	published := c.publishAgent(name, address, "--status-bind-address="+listener.Addr().String())
	kubeconfig := filepath.Join(c.t.TempDir(), "kubeconfig")
	config, _ := account(c.t, plane, namespace, agent)
	if err := controlplane.Kubeconfig(config, kubeconfig); err != nil {
		c.t.Fatal(err)
	}
	a, err := node.StartAgent(lab.AgentConfig{
		Binary: program(c.t, "kube-network-policies"),
		Args:   []string{"--kubeconfig=" + kubeconfig, "--hostname-override=" + name, "--status-bind-address=" + answers.String()},
		Run:    map[string]string{strings.TrimPrefix(tlskey.File, "/run/"): string(must[[]byte](c.t)(os.ReadFile(published.key)))},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		if c.t.Failed() {
			c.t.Logf("log of the agent on %s:\n%s", name, a.Log())
		}
		a.Kill() // before the folders are removed that it may write
	})
}
