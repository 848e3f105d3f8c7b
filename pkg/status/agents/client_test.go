package agents

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
	"sigs.k8s.io/kube-network-policies/pkg/base/handshake"
	"sigs.k8s.io/kube-network-policies/pkg/base/httpserver"
	"sigs.k8s.io/kube-network-policies/pkg/base/tlskey"
)

const (
	account = "netpol-agent"
	answer  = `{"node":"node-1","kinds":[{"kind":"NetworkPolicy"}]}`
)

// agent is a server that an agent could be: it answers who has proved to be the holder.
type agent struct {
	port     uint16
	mu       sync.Mutex
	holder   string // identity
	status   int
	body     string
	header   string
	seen     int // certificates of clients
	requests int
}

// keyOf makes the key of an agent on a node, and returns what publishes it.
func keyOf(t *testing.T, node string) (certificate *tls.Certificate, message string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "key")
	message, err := tlskey.Make(file)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err = tlskey.OfAgent(node, file)
	if err != nil {
		t.Fatal(err)
	}
	return certificate, message
}

// serve starts an agent that takes the holder of an identity for the writer.
func serve(t *testing.T, holder string, certificate *tls.Certificate) *agent {
	t.Helper()
	a := &agent{holder: holder, status: http.StatusOK, body: answer}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a.port = uint16(listener.Addr().(*net.TCPAddr).Port)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- httpserver.New(a, nil, prometheus.NewRegistry()).Run(ctx, listener, &httpserver.Access{Certificate: httpserver.Fixed(certificate), Client: a.check})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return a
}

func (a *agent) check(_ context.Context, c *x509.Certificate) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen++
	if !tlskey.Of(c).Holds(a.holder) {
		return errors.New("not the holder")
	}
	return nil
}

func (a *agent) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests++
	w.Header().Set("Location", "/elsewhere"+a.header)
	w.WriteHeader(a.status)
	_, _ = io.WriteString(w, a.body)
}

// sawNothing expects that no writer has shown the agent its certificate, or asked anything.
func (a *agent) sawNothing(t *testing.T) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.seen != 0 || a.requests != 0 {
		t.Errorf("the server got %d certificates and %d requests of the writer", a.seen, a.requests)
	}
}

// podAt is a pod with an agent at a port of this machine whose init container has left a message.
func podAt(port uint16, message string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "agent-1"},
		Spec: corev1.PodSpec{
			NodeName: "node-1", ServiceAccountName: account,
			Containers: []corev1.Container{{Args: []string{fmt.Sprintf("%s=:%d", addressFlag, port)}}},
		},
		Status: corev1.PodStatus{PodIP: "127.0.0.1", InitContainerStatuses: []corev1.ContainerStatus{{
			Name: "key", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: message}},
		}}},
	}
}

func newClient(t *testing.T) *Client {
	t.Helper()
	c, err := NewClient("writer-0", account)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// ask asks a pod as the informers have it.
func ask(t *testing.T, c *Client, pod *corev1.Pod) (*inforce.Answer, error) {
	t.Helper()
	stripped, err := strip(pod)
	if err != nil {
		t.Fatal(err)
	}
	return Ask(c, inforce.Path, inforce.Decode)(t.Context(), stripped.(*corev1.Pod))
}

// An answer counts only if the server has the key that the status of the asked pod publishes. Any other
// server learns neither who asks nor what.
func TestAgentsProveThemselves(t *testing.T) {
	own, published := keyOf(t, "node-1")
	neighbour, neighbours := keyOf(t, "node-2")
	before, _ := keyOf(t, "node-1")
	none, err := tlskey.SelfSigned("node-1")
	if err != nil {
		t.Fatal(err)
	}
	forged := *own // the certificate of the agent with another private key
	forged.PrivateKey = before.PrivateKey
	otherKey, noKey := "another key than the pod's status publishes: delete the pod", "no key of an agent: its log says why"
	for _, tc := range []struct {
		name      string
		server    *tls.Certificate
		published string
		change    func(*corev1.Pod)
		want      string // part of the error
	}{
		{"the agent", own, published, nil, ""},
		{"the agent of another node", neighbour, published, nil, otherKey},
		{"an earlier pod of the name", before, published, nil, otherKey},
		{"the certificate without its key", &forged, published, nil, "invalid signature"},
		{"an agent that has no key", none, published, nil, noKey},
		{"another agent, whose key the pod's kubelet publishes", neighbour, neighbours, nil, `the agent of another node than "node-1"`},
		{"a pod that publishes nothing", own, "", nil, "publishes no key: it is of an earlier version"},
		{"a pod of an earlier version, without init containers", none, "", func(p *corev1.Pod) { p.Status.InitContainerStatuses = nil }, "publishes no key: it is of an earlier version"},
		{"a pod whose init container runs again", own, published, func(p *corev1.Pod) {
			p.Status.InitContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
		}, "publishes no key"},
		{"a pod whose init container has failed", own, published, func(p *corev1.Pod) { p.Status.InitContainerStatuses[0].State.Terminated.ExitCode = 1 }, "publishes no key"},
		{"a pod of another account", own, published, func(p *corev1.Pod) { p.Spec.ServiceAccountName = "other" }, `is of the service account "other", not "netpol-agent"`},
		{"a static pod, which has no account", own, published, func(p *corev1.Pod) { p.Spec.ServiceAccountName = "" }, `is of the service account ""`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newClient(t)
			a := serve(t, c.Identity(), tc.server)
			pod := podAt(a.port, tc.published)
			if tc.change != nil {
				tc.change(pod)
			}
			for range 2 { // no session is resumed past the check
				got, err := ask(t, c, pod)
				if tc.want == "" {
					if err != nil || got.Node != "node-1" || len(got.Kinds) != 1 {
						t.Errorf("got %+v, %v", got, err)
					}
					continue
				}
				if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.HasPrefix(err.Error(), "pod agent-1 ") {
					t.Errorf("got %+v, %v; want %q", got, err, tc.want)
				}
				a.sawNothing(t)
			}
		})
	}
}

// What the agent of the pod answers may still be no answer.
func TestNoAnswers(t *testing.T) {
	for _, tc := range []struct {
		name   string
		status int
		body   string
		want   string // part of the error
	}{
		{"a failure", http.StatusServiceUnavailable, "no\x1b answer", "HTTP status 503: no? answer"},
		{"to somewhere else", http.StatusFound, "", "HTTP status 302"},
		{"something else", http.StatusOK, "ok", "invalid character"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newClient(t)
			certificate, published := keyOf(t, "node-1")
			a := serve(t, c.Identity(), certificate)
			a.status, a.body = tc.status, tc.body
			if got, err := ask(t, c, podAt(a.port, published)); err == nil || !strings.Contains(err.Error(), tc.want) || !strings.HasPrefix(err.Error(), "pod agent-1 ") {
				t.Errorf("got %+v, %v; want %q", got, err, tc.want)
			}
		})
	}
}

// TestAnswersAreBounded: what an agent sends is not read beyond what an answer needs.
func TestAnswersAreBounded(t *testing.T) {
	certificate, published := keyOf(t, "node-1")
	long, longs := keyOf(t, strings.Repeat("a", bounds.HandshakeBytes))
	for _, tc := range []struct {
		name        string
		certificate *tls.Certificate
		published   string
		change      func(*agent)
		want        string
	}{
		{"the handshake", long, longs, func(*agent) {}, handshake.ErrTooLong.Error()},
		{"the header", certificate, published, func(a *agent) { a.header = strings.Repeat("a", bounds.AnswerHeader) }, "server response headers exceeded"},
		{"the reason of a failure", certificate, published, func(a *agent) { a.status, a.body = http.StatusTeapot, strings.Repeat("a", 2*bounds.AnswerReason) }, "HTTP status 418"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newClient(t)
			a := serve(t, c.Identity(), tc.certificate)
			tc.change(a)
			_, err := ask(t, c, podAt(a.port, tc.published))
			if err == nil || !strings.Contains(err.Error(), tc.want) || len(err.Error()) > 2*bounds.AnswerReason {
				t.Errorf("got %.600v; want %q", err, tc.want)
			}
		})
	}
}

// An agent ends the connection of a writer that does not hold the Lease: another key, or none.
func TestAgentsAnswerTheHolderOnly(t *testing.T) {
	holder, other := newClient(t), newClient(t)
	certificate, published := keyOf(t, "node-1")
	a := serve(t, holder.Identity(), certificate)
	pod := podAt(a.port, published)
	for range 3 { // a refused client must not be let in by a resumed session
		if got, err := ask(t, other, pod); err == nil || !strings.Contains(err.Error(), "does not know this writer") {
			t.Errorf("a writer without the Lease got %+v, %v", got, err)
		}
	}
	none := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	if _, err := none.Get(fmt.Sprintf("https://127.0.0.1:%d%s", a.port, inforce.Path)); err == nil {
		t.Error("a client without a key got an answer")
	}
	if a.requests != 0 {
		t.Errorf("%d requests were served", a.requests)
	}
	if _, err := ask(t, holder, pod); err != nil {
		t.Error(err)
	}
}

// A writer that lost the Lease gets no further answers.
func TestFormerHolder(t *testing.T) {
	former, next := newClient(t), newClient(t)
	certificate, published := keyOf(t, "node-1")
	a := serve(t, former.Identity(), certificate)
	pod := podAt(a.port, published)
	if _, err := ask(t, former, pod); err != nil {
		t.Fatal(err)
	}
	a.mu.Lock()
	a.holder = next.Identity()
	a.mu.Unlock()
	if got, err := ask(t, former, pod); err == nil {
		t.Errorf("the former holder got %+v", got)
	}
	if _, err := ask(t, next, pod); err != nil {
		t.Error(err)
	}
}

// A man in the middle, who ends the writer's connection and opens another one, has neither side's key,
// even with the certificates of both.
func TestRelay(t *testing.T) {
	c := newClient(t)
	certificate, published := keyOf(t, "node-1")
	a := serve(t, c.Identity(), certificate)
	own, _ := keyOf(t, "node-1")
	through := tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{{Certificate: c.certificate.Certificate, PrivateKey: own.PrivateKey}}}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &through}}
	if _, err := client.Get(fmt.Sprintf("https://127.0.0.1:%d%s", a.port, inforce.Path)); err == nil {
		t.Error("the agent answered a client that has the writer's certificate, and not its key")
	}
	if a.requests != 0 {
		t.Errorf("%d requests were served", a.requests)
	}
	for _, relay := range []*tls.Certificate{own, {Certificate: certificate.Certificate, PrivateKey: own.PrivateKey}} {
		r := serve(t, c.Identity(), relay)
		if got, err := ask(t, c, podAt(r.port, published)); err == nil {
			t.Errorf("the writer believes %+v", got)
		}
		r.sawNothing(t)
	}
}

// A pod that hangs is named as well.
func TestHangingPodIsNamed(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, published := keyOf(t, "node-1")
	pod := podAt(uint16(listener.Addr().(*net.TCPAddr).Port), published)
	ctx, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	if _, err := Ask(newClient(t), inforce.Path, inforce.Decode)(ctx, pod); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "pod agent-1 at 127.0.0.1:") {
		t.Errorf("got %v", err)
	}
}

// The port is that of the agent's flag, which strip leaves in the pod.
func TestPortOfAgent(t *testing.T) {
	const flag = "--status-bind-address"
	const none = "has no " + flag
	for _, tc := range []struct {
		containers [][]string
		want       string // or part of the error
	}{
		{[][]string{{"--v=2"}}, none},
		{[][]string{{"--v=2", flag + "=127.0.0.1:9081"}}, "9081"},
		{[][]string{{flag, "[::1]:9082"}}, "9082"},
		{[][]string{{"--a-sidecar"}, {flag + "=$(HOST_IP):9083"}}, "9083"},
		{[][]string{{flag}}, none},
		{[][]string{{flag + "="}}, none},
		{[][]string{{flag + "=$(ADDRESS)"}}, "has " + flag + ": address $(ADDRESS): missing port"},
	} {
		t.Run(fmt.Sprint(tc.containers), func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "agent-n"}}
			for _, args := range tc.containers {
				pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Image: "agent", Args: args})
			}
			stripped, _ := strip(pod)
			got, err := portOf(stripped.(*corev1.Pod))
			if got != tc.want && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %q, %v, want %s", got, err, tc.want)
			}
		})
	}
}
