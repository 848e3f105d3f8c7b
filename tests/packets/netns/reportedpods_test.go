package netns

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
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
	"sigs.k8s.io/kube-network-policies/tests/packets/apiserver"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

const agentsPort = "9082"

// otherAgent is the agent of the second node, played by the test.
type otherAgent struct {
	*cluster
	t           *testing.T
	key         string            // the file with that of the agent under test
	own         *x509.Certificate // of the agent under test
	certificate *tls.Certificate  // whose key the API shows
	forged      *tls.Certificate  // another one that names the second node
}

// newOtherAgent returns the agent of the second node of c, and an API in which no pod of that node has
// an address in its status.
func newOtherAgent(t *testing.T, c *cluster) (*otherAgent, *apiserver.Server) {
	t.Helper()
	file, message, own := keyOf(t, c.Nodes[0].Name)
	_, otherMessage, other := keyOf(t, c.Nodes[1].Name)
	_, _, forged := keyOf(t, c.Nodes[1].Name)
	api := apiserver.New()
	put(t, api, c.Nodes[0].Object(), c.Nodes[1].Object(), lab.NewNamespace("x", nil), lab.NewNamespace("kube-system", nil), agentPod(c.Nodes[0], message), agentPod(c.Nodes[1], otherMessage))
	for _, pod := range c.Pods {
		object := pod.Object.DeepCopy()
		if object.Spec.NodeName == c.Nodes[1].Name {
			object.Status = corev1.PodStatus{Phase: corev1.PodPending}
		}
		put(t, api, object)
	}
	return &otherAgent{cluster: c, t: t, key: file, own: own.Leaf, certificate: other, forged: forged}, api
}

// startAsker starts the agent under test with the API of serveAPI and waits until it is ready.
func (o *otherAgent) startAsker(args ...string) *lab.Agent {
	o.t.Helper()
	key, err := os.ReadFile(o.key)
	if err != nil {
		o.t.Fatal(err)
	}
	agent := o.startAgent(o.t, lab.AgentConfig{
		Args: append(args, kubeconfig(o.t), "--status-bind-address=:"+agentsPort),
		Run:  map[string]string{strings.TrimPrefix(tlskey.File, "/run/"): string(key)},
	})
	labtest.WaitReady(o.t, agent)
	return agent
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
func (o *otherAgent) serve(certificate *tls.Certificate, board http.Handler) (stop func()) {
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

// wantDial connects from one pod to another, of which one has just started.
func (o *otherAgent) wantDial(what string, proto lab.Proto, from, to string, want lab.Outcome) {
	o.t.Helper()
	server := netip.AddrPortFrom(o.Pods[to].Addrs[0], 80)
	answer, err := o.Pods[from].Probe(o.t.Context(), proto, server, 6*time.Second)
	if err != nil || answer.Outcome != want {
		o.t.Errorf("%s: %v to %s over %s: %v, %v, want %v", what, from, to, proto, answer.Outcome, err, want)
	}
}

// whilePending calls then once the first packet of dial waits in the agent under test.
func (o *otherAgent) whilePending(agent *lab.Agent, dial, then func()) {
	o.t.Helper()
	pending := func(m lab.Metrics) float64 { return m.Sum("netpol_queue_verdicts_total", "verdict", "pending") }
	before, dialed := pending(labtest.Metrics(o.t, agent)), make(chan struct{})
	go func() {
		defer close(dialed)
		dial()
	}()
	labtest.Until(o.t, agent, before+1, pending)
	then()
	<-dialed
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
	o, api := newOtherAgent(t, newCluster(t, 2, "x/server@1 name=server", "x/a@2 role=client", "x/b@2 role=client", "x/c@2 role=client", "x/d@2 role=client", "x/e@2 role=client", "x/f@2 role=client", "x/g@2 role=client", "x/strange@2 role=other"))
	put(t, api, policyOf(t, `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {namespace: x, name: server},
  spec: {podSelector: {matchLabels: {name: server}}, ingress: [{from: [{podSelector: {matchLabels: {role: client}}}]}]}}`))
	stopAPI := serveAPI(t, o.Nodes[0], api)
	agent := o.startAsker()

	want := func(what string, proto lab.Proto, from string, allowed bool) {
		t.Helper()
		outcome := lab.TimedOut
		if allowed {
			outcome = lab.Connected
		}
		o.wantDial(what, proto, from, "x/server", outcome)
	}
	want("no agent", lab.TCP, "x/a", false)
	o.hang(func() { want("an agent that never answers", lab.TCP, "x/g", false) })

	board := newpods.NewBoard()
	board.Set(o.report("x/b", nil))
	stop := o.serve(o.forged, board)
	want("an agent with another key", lab.TCP, "x/b", false)
	stop()

	board = newpods.NewBoard()
	stop = o.serve(o.certificate, board)
	defer stop()
	board.Set(o.report("x/c", func(s *clusterstate.Sandbox) { s.UID = "earlier" }))
	want("another pod of the name", lab.TCP, "x/c", false)
	board.Set(o.report("x/strange", nil))
	want("a pod that is not admitted", lab.TCP, "x/strange", false)

	board.Set(o.report("x/d", nil))
	want("a pod that is reported", lab.UDP, "x/d", true)
	want("its next connection", lab.TCP, "x/d", true)
	stopAPI()
	o.whilePending(agent, func() { want("a pod that is reported late, without an API server", lab.UDP, "x/e", true) },
		func() { board.Set(o.report("x/e", nil)) })
	board.Set(nil)
	want("a pod that is not reported", lab.UDP, "x/f", false)
	o.askAsPod("x/a")
}

// askAsPod asks the agent under test from a pod, with a certificate that says that it is an agent's.
func (o *otherAgent) askAsPod(pod string) {
	o.t.Helper()
	port, err := strconv.ParseUint(agentsPort, 10, 16)
	if err != nil {
		o.t.Fatal(err)
	}
	conn, err := o.Pods[pod].Dial(o.t.Context(), lab.TCP, netip.AddrPortFrom(o.Nodes[0].Addrs[0], uint16(port)))
	if err != nil {
		o.t.Fatal(err)
	}
	defer conn.Close()
	client := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{*o.forged}})
	if _, err := io.WriteString(client, "GET "+newpods.Path+" HTTP/1.1\r\nHost: agent\r\n\r\n"); err != nil {
		return
	}
	if answer, _ := io.ReadAll(client); len(answer) > 0 {
		o.t.Errorf("a pod gets %q", answer)
	}
}
