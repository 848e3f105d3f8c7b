package integration

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/pkg/agent/holder"
	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
	"sigs.k8s.io/kube-network-policies/pkg/base/httpserver"
	"sigs.k8s.io/kube-network-policies/pkg/base/writerkey"
)

// fakeAgents answer the status writer as agents do: each at a loopback address of its own, over TLS, and
// only to the holder of the Lease. One listener and one copy of the Lease serve all.
type fakeAgents struct {
	client kubernetes.Interface
	port   int

	mu        sync.Mutex
	byAddress map[netip.Addr]*fakeAgent
	asked     []question
}

// question is one that an agent was asked.
type question struct {
	at         time.Time
	node, path string
}

// fakeAgent is the agent of one node.
type fakeAgent struct {
	node  string
	pod   *corev1.Pod
	token string

	mu     sync.Mutex
	answer func() inforce.Answer
}

// say has the agent answer something else.
func (a *fakeAgent) say(answer func() inforce.Answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer = answer
}

// enforce has the agent enforce all kinds up to a version.
func (a *fakeAgent) enforce(version string) {
	a.say(func() (answer inforce.Answer) {
		for _, kind := range []string{"NetworkPolicy", "Namespace", "Pod"} {
			answer.Kinds = append(answer.Kinds, inforce.Kind{Kind: kind, Version: version, Seen: version})
		}
		return answer
	})
}

// inForce is what the agent answers.
func (a *fakeAgent) inForce() inforce.Answer {
	a.mu.Lock()
	defer a.mu.Unlock()
	answer := a.answer()
	answer.Node = a.node
	return answer
}

// serveFakeAgents serves agents until the test ends. There are none yet.
func serveFakeAgents(t *testing.T, client kubernetes.Interface) *fakeAgents {
	t.Helper()
	listener := must[net.Listener](t)(net.Listen("tcp4", "0.0.0.0:0"))
	f := &fakeAgents{client: client, port: listener.Addr().(*net.TCPAddr).Port, byAddress: map[netip.Addr]*fakeAgent{}}
	certificate, err := httpserver.SelfSigned("agent")
	if err != nil {
		t.Fatal(err)
	}
	writer := holder.New(client.CoordinationV1().Leases(namespace), klog.Background())
	server := &http.Server{
		Handler: f,
		// As Access of httpserver has it, without the limits that each agent has for itself.
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAnyClientCert, SessionTicketsDisabled: true,
			NextProtos: []string{"http/1.1"}, GetCertificate: certificate,
			VerifyPeerCertificate: func(chain [][]byte, _ [][]*x509.Certificate) error {
				presented, err := x509.ParseCertificate(chain[0])
				if err != nil {
					return err
				}
				return writer.Check(context.Background(), presented)
			},
		},
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
		ErrorLog:     log.New(io.Discard, "", 0), // a new writer is refused until the Lease is read again
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.ServeTLS(listener, "", "") // until Close
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-ended
	})
	return f
}

// ServeHTTP answers as the agent at the address to which the client has connected.
func (f *fakeAgents) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	at, _ := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	f.mu.Lock()
	a := f.byAddress[at.AddrPort().Addr().Unmap()]
	if a != nil {
		f.asked = append(f.asked, question{time.Now(), a.node, r.URL.Path})
	}
	f.mu.Unlock()
	if a == nil {
		http.NotFound(w, r)
		return
	}
	w.Header().Set(writerkey.TokenHeader, a.token)
	switch r.URL.Path {
	case inforce.Path:
		_ = json.NewEncoder(w).Encode(a.inForce())
	case flows.DeniedPath:
		_ = json.NewEncoder(w).Encode(flows.Denied{Node: a.node})
	default:
		http.NotFound(w, r)
	}
}

// allAsked returns all questions so far.
func (f *fakeAgents) allAsked() []question {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.asked)
}

// start publishes the agent of a node, which enforces nothing yet.
func (f *fakeAgents) start(ctx context.Context, node string) (*fakeAgent, error) {
	a := &fakeAgent{node: node}
	a.enforce("1")
	pods := f.client.CoreV1().Pods(namespace)
	pod, err := pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "agent-" + node, Labels: map[string]string{"app.kubernetes.io/name": agent}},
		Spec: corev1.PodSpec{NodeName: node, HostNetwork: true, ServiceAccountName: agent, Containers: []corev1.Container{
			{Name: agent, Image: "none", Args: []string{fmt.Sprintf("--status-bind-address=:%d", f.port)}},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	if err := f.prove(ctx, a, pod); err != nil {
		return nil, err
	}
	address := f.addressFor(a).String()
	pod.Status.Phase, pod.Status.PodIP, pod.Status.PodIPs = corev1.PodRunning, address, []corev1.PodIP{{IP: address}}
	a.pod, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return a, err
}

// addressFor gives an agent an address, at which it answers from then on.
func (f *fakeAgents) addressFor(a *fakeAgent) netip.Addr {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.byAddress) + 1
	address := netip.AddrFrom4([4]byte{127, 1, byte(n >> 8), byte(n)})
	f.byAddress[address] = a
	return address
}

// prove gives an agent what proves to the writer that it runs in a pod.
func (f *fakeAgents) prove(ctx context.Context, a *fakeAgent, pod *corev1.Pod) error {
	review, err := f.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, agent, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{
			Audiences:      []string{writerkey.Audience},
			BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
		},
	}, metav1.CreateOptions{})
	if err == nil {
		a.token = review.Status.Token
	}
	return err
}

// startFakeAgent starts the agent of a node, until the test ends.
func (c *cluster) startFakeAgent(node string) *fakeAgent {
	c.t.Helper()
	if c.agents == nil {
		c.agents = serveFakeAgents(c.t, c.client)
	}
	a := must[*fakeAgent](c.t)(c.agents.start(c.t.Context(), node))
	c.t.Cleanup(func() {
		_ = c.client.CoreV1().Pods(namespace).Delete(context.Background(), a.pod.Name, *metav1.NewDeleteOptions(0))
	})
	return a
}
