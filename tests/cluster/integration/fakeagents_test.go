package integration

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/agent/holder"
	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
)

// fakeAgents answer the status writer as agents do: each at a loopback address of its own, over TLS, and
// only to the holder of the Lease. One listener and one copy of the Lease serve all.
type fakeAgents struct {
	client kubernetes.Interface
	port   int
	keys   string // folder

	mu        sync.Mutex
	addresses int
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
	publishedAgent
	node string

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
	f := &fakeAgents{client: client, port: listener.Addr().(*net.TCPAddr).Port, keys: t.TempDir(), byAddress: map[netip.Addr]*fakeAgent{}}
	writer := holder.New(client.CoordinationV1().Leases(namespace), klog.Background())
	server := &http.Server{
		Handler: f,
		// As Access of httpserver has it, without the limits that each agent has for itself.
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAnyClientCert, SessionTicketsDisabled: true,
			NextProtos: []string{"http/1.1"},
			GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
				if a := f.at(hello.Conn.LocalAddr()); a != nil {
					return a.certificate, nil
				}
				return nil, errors.New("no agent has this address")
			},
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

// at returns the agent at an address, nil if there is none.
func (f *fakeAgents) at(address net.Addr) *fakeAgent {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.byAddress[address.(*net.TCPAddr).AddrPort().Addr().Unmap()]
}

// ServeHTTP answers as the agent at the address to which the client has connected.
func (f *fakeAgents) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	at, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	a := f.at(at) // it was there at the handshake
	f.mu.Lock()
	f.asked = append(f.asked, question{time.Now(), a.node, r.URL.Path})
	f.mu.Unlock()
	switch r.URL.Path {
	case inforce.Path:
		_ = json.NewEncoder(w).Encode(a.inForce())
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
	address := f.newAddress()
	published, err := publishAgent(ctx, f.client, filepath.Join(f.keys, node), node, address.String(), fmt.Sprintf("--status-bind-address=:%d", f.port))
	if err != nil {
		return nil, err
	}
	a.publishedAgent = *published
	f.mu.Lock()
	defer f.mu.Unlock()
	f.byAddress[address] = a
	return a, nil
}

func (f *fakeAgents) newAddress() netip.Addr {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.addresses++
	return netip.AddrFrom4([4]byte{127, 1, byte(f.addresses >> 8), byte(f.addresses)})
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
