package netns

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/pkg/agent/newpods"
	"sigs.k8s.io/kube-network-policies/pkg/base/httpserver"
	"sigs.k8s.io/kube-network-policies/pkg/base/tlskey"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
	"sigs.k8s.io/kube-network-policies/tests/speed/scale/apiserver"
)

const agentsPort = "9082"

// otherAgent is the agent of the second node, played by the test.
type otherAgent struct {
	*cluster
	t           *testing.T
	own         *x509.Certificate // of the agent under test
	certificate *tls.Certificate  // whose key the API shows
}

// keyOf makes a key, and returns its file, what publishes it, and a certificate of a node.
func keyOf(t *testing.T, node string) (file, message string, certificate *tls.Certificate) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "key")
	message, err := tlskey.Make(file)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err = tlskey.OfAgent(node, file)
	if err != nil {
		t.Fatal(err)
	}
	return file, message, certificate
}

// agentPod is the pod of an agent on a node that publishes a key.
func agentPod(node *lab.Node, message string) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "agent-" + node.Name, UID: types.UID("agent-" + node.Name)},
		Spec:       corev1.PodSpec{NodeName: node.Name, ServiceAccountName: "agent", HostNetwork: true},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: node.Addrs[0].String(), InitContainerStatuses: []corev1.ContainerStatus{{
			Name: "key", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: message}},
		}}},
	}
}

// listen listens where the agent of the second node does.
func (o *otherAgent) listen() (listener net.Listener) {
	o.t.Helper()
	if err := o.Nodes[1].Do(func() (err error) {
		listener, err = net.Listen("tcp", net.JoinHostPort(o.Nodes[1].Addrs[0].String(), agentsPort))
		return err
	}); err != nil {
		o.t.Fatal(err)
	}
	return listener
}

// serve serves a board on the second node with a certificate, until stop is called.
func (o *otherAgent) serve(certificate *tls.Certificate, board *newpods.Board) (stop func()) {
	o.t.Helper()
	listener := o.listen()
	ctx, end := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		done <- httpserver.New(board, nil, prometheus.NewRegistry()).Run(ctx, listener, &httpserver.Access{
			Certificate: httpserver.Fixed(certificate),
			Client: func(_ context.Context, c *x509.Certificate) error {
				if string(c.RawSubjectPublicKeyInfo) != string(o.own.RawSubjectPublicKeyInfo) {
					return errors.New("another agent")
				}
				return nil
			},
		})
	}()
	return func() {
		end()
		if err := <-done; err != nil {
			o.t.Error(err)
		}
	}
}

// hang accepts connections on the second node and answers none, while f runs.
func (o *otherAgent) hang(f func()) {
	o.t.Helper()
	listener := o.listen()
	f()
	// The kernel has completed the handshakes. It resets the connections now.
	listener.Close()
}

// dial connects from a pod that has just started to x/server, and reports whether it could.
func (o *otherAgent) dial(proto lab.Proto, from string) bool {
	o.t.Helper()
	server := netip.AddrPortFrom(o.Pods["x/server"].Addrs[0], 80)
	answer, err := o.Pods[from].Probe(o.t.Context(), proto, server, 6*time.Second)
	if err != nil {
		o.t.Fatal(err)
	}
	return answer.Outcome == lab.Connected
}

// report is what the agent of the second node says of a pod.
func (o *otherAgent) report(pod string, change func(*clusterstate.Sandbox)) []clusterstate.Sandbox {
	p := o.Pods[pod]
	s := clusterstate.Sandbox{Namespace: p.Object.Namespace, Name: p.Object.Name, UID: p.Object.UID, Addrs: p.Addrs}
	if change != nil {
		change(&s)
	}
	return []clusterstate.Sandbox{s}
}

// TestReportedPodsOfAnotherNode: first packets of pods whose addresses no status ever shows are allowed if
// the agent of their node reports them in time, and by nothing else.
func TestReportedPodsOfAnotherNode(t *testing.T) {
	c := newCluster(t, 2, "x/server@1", "x/a@2 role=client", "x/b@2 role=client", "x/c@2 role=client", "x/d@2 role=client", "x/e@2 role=client", "x/f@2 role=client", "x/g@2 role=client", "x/strange@2 role=other")
	file, message, own := keyOf(t, c.Nodes[0].Name)
	_, otherMessage, other := keyOf(t, c.Nodes[1].Name)
	_, _, forged := keyOf(t, c.Nodes[1].Name)
	o := &otherAgent{cluster: c, t: t, own: own.Leaf, certificate: other}

	api := apiserver.New()
	put(t, api, c.Nodes[0].Object(), lab.NewNamespace("x", nil), lab.NewNamespace("kube-system", nil), agentPod(c.Nodes[0], message), agentPod(c.Nodes[1], otherMessage))
	put(t, api, policyOf(t, `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {namespace: x, name: server},
  spec: {podSelector: {matchLabels: {name: server}}, ingress: [{from: [{podSelector: {matchLabels: {role: client}}}]}]}}`))
	for name, pod := range c.Pods {
		object := pod.Object.DeepCopy()
		if strings.HasSuffix(name, "server") {
			object.Labels["name"] = "server"
		} else {
			object.Status = corev1.PodStatus{Phase: corev1.PodPending}
		}
		put(t, api, object)
	}
	stopAPI := serveAPI(t, c.Nodes[0], api)
	key, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	agent := c.startAgent(t, lab.AgentConfig{
		Args: []string{kubeconfig(t), "--status-bind-address=:" + agentsPort},
		Run:  map[string]string{strings.TrimPrefix(tlskey.File, "/run/"): string(key)},
	})
	labtest.WaitReady(t, agent)

	want := func(what string, proto lab.Proto, from string, allowed bool) {
		t.Helper()
		if got := o.dial(proto, from); got != allowed {
			t.Errorf("%s: connected %v, want %v", what, got, allowed)
		}
	}
	want("no agent", lab.TCP, "x/a", false)
	o.hang(func() { want("an agent that never answers", lab.TCP, "x/g", false) })

	board := newpods.NewBoard()
	board.Set(o.report("x/b", nil))
	stop := o.serve(forged, board)
	want("an agent with another key", lab.TCP, "x/b", false)
	stop()

	board = newpods.NewBoard()
	stop = o.serve(other, board)
	defer stop()
	board.Set(o.report("x/c", func(s *clusterstate.Sandbox) { s.UID = "earlier" }))
	want("another pod of the name", lab.TCP, "x/c", false)
	board.Set(o.report("x/strange", nil))
	want("a pod that is not admitted", lab.TCP, "x/strange", false)

	board.Set(o.report("x/d", nil))
	want("a pod that is reported", lab.UDP, "x/d", true)
	want("its next connection", lab.TCP, "x/d", true)
	stopAPI()
	late := time.AfterFunc(time.Second, func() { board.Set(o.report("x/e", nil)) })
	defer late.Stop()
	want("a pod that is reported late, without an API server", lab.UDP, "x/e", true)
	board.Set(nil)
	want("a pod that is not reported", lab.UDP, "x/f", false)
	o.askAsPod("x/a")
}

// askAsPod asks the agent under test from a pod, with a certificate that says that it is an agent's.
func (o *otherAgent) askAsPod(pod string) {
	o.t.Helper()
	_, _, forged := keyOf(o.t, o.Nodes[1].Name)
	port, err := strconv.ParseUint(agentsPort, 10, 16)
	if err != nil {
		o.t.Fatal(err)
	}
	conn, err := o.Pods[pod].Dial(o.t.Context(), lab.TCP, netip.AddrPortFrom(o.Nodes[0].Addrs[0], uint16(port)))
	if err != nil {
		o.t.Fatal(err)
	}
	defer conn.Close()
	client := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{*forged}})
	if _, err := io.WriteString(client, "GET "+newpods.Path+" HTTP/1.1\r\nHost: agent\r\n\r\n"); err != nil {
		return
	}
	if answer, err := io.ReadAll(client); err == nil || len(answer) > 0 {
		o.t.Errorf("a pod gets %q", answer)
	}
}
