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
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/pkg/base/httpserver"
	"sigs.k8s.io/kube-network-policies/pkg/base/writerkey"
)

const (
	agentsNamespace = "kube-system"
	agentsAccount   = "kube-network-policies"
	agentsUser      = "system:serviceaccount:kube-system:kube-network-policies"
)

// token is what the fake API server knows of a token.
type token struct {
	user, pod string
	audience  string
}

// reviews is an API server that reviews tokens.
type reviews struct {
	*fake.Clientset
	mu     sync.Mutex
	tokens map[string]token
	err    error
	count  int
}

func newReviews() *reviews {
	r := &reviews{Clientset: fake.NewClientset(), tokens: map[string]token{
		"token-1":  {agentsUser, "pod-1", writerkey.Audience},
		"token-2":  {agentsUser, "pod-2", writerkey.Audience},
		"unbound":  {agentsUser, "", writerkey.Audience},
		"other":    {"system:serviceaccount:kube-system:other", "pod-1", writerkey.Audience},
		"server":   {agentsUser, "pod-1", "https://kubernetes.default.svc"},
		"two-pods": {agentsUser, "pod-1,pod-2", writerkey.Audience},
	}}
	r.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
		r.mu.Lock()
		defer r.mu.Unlock()
		r.count++
		review.Status = r.review(review.Spec)
		return true, review, r.err
	})
	return r
}

// review reviews a token as an API server does: a token of another audience is not authenticated.
func (r *reviews) review(spec authenticationv1.TokenReviewSpec) (status authenticationv1.TokenReviewStatus) {
	known, ok := r.tokens[spec.Token]
	if !ok || len(spec.Audiences) != 1 || spec.Audiences[0] != known.audience {
		return status
	}
	status.Authenticated, status.Audiences, status.User.Username = true, spec.Audiences, known.user
	if known.pod != "" {
		status.User.Extra = map[string]authenticationv1.ExtraValue{podUID: strings.Split(known.pod, ",")}
	}
	return status
}

const answer = `{"node":"node-1","policies":[{"kind":"NetworkPolicy","name":"db","count":1}]}`

// agent is a server that an agent could be: it sends a token to who has proved to be the holder.
type agent struct {
	port     uint16
	mu       sync.Mutex
	holder   string // identity
	token    string
	status   int
	body     string
	requests int
}

// serve starts an agent that takes the holder of an identity for the writer.
func serve(t *testing.T, holder, token string) *agent {
	t.Helper()
	a := &agent{holder: holder, token: token, status: http.StatusOK, body: answer}
	certificate, err := httpserver.SelfSigned("node-1")
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a.port = uint16(listener.Addr().(*net.TCPAddr).Port)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- httpserver.New(a, nil, prometheus.NewRegistry()).Run(ctx, listener, &httpserver.Access{Certificate: certificate, Client: a.check})
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
	if !writerkey.Of(c).Holds(a.holder) {
		return errors.New("not the holder")
	}
	return nil
}

func (a *agent) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests++
	w.Header().Set(writerkey.TokenHeader, a.token)
	w.Header().Set("Location", "/elsewhere")
	w.WriteHeader(a.status)
	_, _ = io.WriteString(w, a.body)
}

// podAt is a pod with an agent at a port of this machine.
func podAt(uid string, port uint16) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "agent-1", UID: types.UID(uid)},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Args: []string{fmt.Sprintf("%s=:%d", addressFlag, port)}}}},
		Status:     corev1.PodStatus{PodIP: "127.0.0.1"},
	}
}

func newClient(t *testing.T, r *reviews) *Client {
	t.Helper()
	c, err := NewClient("writer-0", r, agentsNamespace, agentsAccount)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func askDenied(t *testing.T, c *Client, pod *corev1.Pod) (*flows.Denied, error) {
	t.Helper()
	return Ask(c, flows.DeniedPath, flows.DecodeDenied)(t.Context(), pod)
}

// An answer counts only with the token that the API server has bound to the pod that was asked.
func TestAgentsProveThemselves(t *testing.T) {
	for _, tc := range []struct {
		name, token string
		status      int
		body        string
		want        string // part of the error
	}{
		{"an agent", "token-1", http.StatusOK, answer, ""},
		{"no token", "", http.StatusOK, answer, "it sends no token"},
		{"a token of no account", "imposter", http.StatusOK, answer, "not valid for the status writer"},
		{"the token of another pod", "token-2", http.StatusOK, answer, "of another pod"},
		{"a token of no pod", "unbound", http.StatusOK, answer, "of another pod"},
		{"a token of two pods", "two-pods", http.StatusOK, answer, "of another pod"},
		{"the token of another account", "other", http.StatusOK, answer, "kube-system:other"},
		{"a token for the API server", "server", http.StatusOK, answer, "not valid for the status writer"},
		{"a failure", "token-1", http.StatusServiceUnavailable, "no\x1b token", "HTTP status 503: no? token"},
		{"to somewhere else", "token-1", http.StatusFound, "", "HTTP status 302"},
		{"something else", "token-1", http.StatusOK, "ok", "invalid character"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newReviews()
			c := newClient(t, r)
			a := serve(t, c.Identity(), tc.token)
			a.status, a.body = tc.status, tc.body
			got, err := askDenied(t, c, podAt("pod-1", a.port))
			if tc.want == "" && (err != nil || got.Node != "node-1" || len(got.Policies) != 1) || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %+v, %v; want %q", got, err, tc.want)
			}
		})
	}
}

// An agent ends the handshake with a writer that does not hold the Lease: another key, or none.
func TestAgentsAnswerTheHolderOnly(t *testing.T) {
	r := newReviews()
	holder, other := newClient(t, r), newClient(t, r)
	a := serve(t, holder.Identity(), "token-1")
	for range 3 { // a refused client must not be let in by a resumed session
		if got, err := askDenied(t, other, podAt("pod-1", a.port)); err == nil {
			t.Errorf("a writer without the Lease got %+v", got)
		}
	}
	none := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	if _, err := none.Get(fmt.Sprintf("https://127.0.0.1:%d%s", a.port, flows.DeniedPath)); err == nil {
		t.Error("a client without a key got an answer")
	}
	if a.requests != 0 {
		t.Errorf("%d requests were served", a.requests)
	}
	if _, err := askDenied(t, holder, podAt("pod-1", a.port)); err != nil {
		t.Error(err)
	}
}

// A writer that lost the Lease gets no further answers.
func TestFormerHolder(t *testing.T) {
	r := newReviews()
	former, next := newClient(t, r), newClient(t, r)
	a := serve(t, former.Identity(), "token-1")
	pod := podAt("pod-1", a.port)
	if _, err := askDenied(t, former, pod); err != nil {
		t.Fatal(err)
	}
	a.mu.Lock()
	a.holder = next.Identity()
	a.mu.Unlock()
	if got, err := askDenied(t, former, pod); err == nil {
		t.Errorf("the former holder got %+v", got)
	}
	if _, err := askDenied(t, next, pod); err != nil {
		t.Error(err)
	}
}

// A man in the middle, who ends the writer's connection and opens another one, has no key that the
// agent knows, even with the writer's certificate. The token that the agent would send stays secret.
func TestRelay(t *testing.T) {
	r := newReviews()
	c := newClient(t, r)
	a := serve(t, c.Identity(), "token-1")
	writers := c.http.Transport.(*http.Transport).TLSClientConfig.Certificates[0].Certificate
	own, err := httpserver.SelfSigned("node-1")
	if err != nil {
		t.Fatal(err)
	}
	key, err := own(nil)
	if err != nil {
		t.Fatal(err)
	}
	relay := serve(t, c.Identity(), "")
	through := tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{{Certificate: writers, PrivateKey: key.PrivateKey}}}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &through}}
	if _, err := client.Get(fmt.Sprintf("https://127.0.0.1:%d%s", a.port, flows.DeniedPath)); err == nil {
		t.Error("the agent answered a client that has the writer's certificate, and not its key")
	}
	if a.requests != 0 {
		t.Errorf("%d requests were served", a.requests)
	}
	if got, err := askDenied(t, c, podAt("pod-1", relay.port)); err == nil {
		t.Errorf("the writer believes %+v", got)
	}
}

// A token is reviewed once in reviewedFor, for one pod, and what is refused is not remembered.
func TestReviewsAreRemembered(t *testing.T) {
	r := newReviews()
	c := newClient(t, r)
	one, two := podAt("pod-1", 1), podAt("pod-2", 1)
	steps := []struct {
		pod     *corev1.Pod
		token   string
		ok      bool
		reviews int
	}{
		{one, "token-1", true, 1},
		{one, "token-1", true, 1},
		{two, "token-1", false, 2}, // a replay by another pod
		{two, "token-1", false, 3},
		{two, "token-2", true, 4},
		{one, "token-1", true, 4},
		{one, "token-2", false, 5},
		{one, "token-1", true, 5},
	}
	for i, s := range steps {
		err := c.tokens.check(t.Context(), s.pod, s.token)
		if (err == nil) != s.ok || r.count != s.reviews {
			t.Fatalf("step %d: got %v after %d reviews, want ok %v after %d", i, err, r.count, s.ok, s.reviews)
		}
	}
}

// Without an answer of the API server nothing is believed, except for what is remembered.
func TestReviewsFail(t *testing.T) {
	r := newReviews()
	c := newClient(t, r)
	if err := c.tokens.check(t.Context(), podAt("pod-1", 1), "token-1"); err != nil {
		t.Fatal(err)
	}
	r.err = errors.New("no connection")
	if err := c.tokens.check(t.Context(), podAt("pod-1", 1), "token-1"); err != nil {
		t.Error(err)
	}
	if err := c.tokens.check(t.Context(), podAt("pod-2", 1), "token-2"); err == nil || !strings.Contains(err.Error(), "no connection") {
		t.Errorf("got %v", err)
	}
}

// The port is that of the agent's flag, which strip leaves in the pod.
func TestPortOfAgent(t *testing.T) {
	const flag = "--status-bind-address"
	const none = "pod agent-n has no " + flag
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
		{[][]string{{flag + "=$(ADDRESS)"}}, flag + " of pod agent-n: address $(ADDRESS): missing port"},
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
