package agents

import (
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/pkg/base/httpserver"
)

// serve serves at a port of this machine with a certificate for a name, which is returned.
func serve(t *testing.T, name string, h http.HandlerFunc) (port uint16, ca string) {
	t.Helper()
	certificate, err := httpserver.SelfSigned(name)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := certificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	ca = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h, TLSConfig: &tls.Config{GetCertificate: certificate}, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = server.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { _ = server.Close() })
	return uint16(listener.Addr().(*net.TCPAddr).Port), ca
}

// folder returns a folder with files that have texts.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// An agent is asked with the token, if its certificate is the agents', and only there.
func TestHTTPS(t *testing.T) {
	tokens := make(chan string, 10)
	answer := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			tokens <- r.URL.Path + " " + r.Header.Get("Authorization")
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}
	}
	const good = `{"node":"node-1","policies":[{"kind":"NetworkPolicy","name":"db","count":1}]}`
	for _, tc := range []struct {
		name, host string
		status     int
		body       string
		otherCA    bool
		want       string // part of the error
		asked      int
	}{
		{"an agent", agentsName, http.StatusOK, good, false, "", 1},
		{"no right", agentsName, http.StatusForbidden, "", false, "403 Forbidden", 1},
		{"to somewhere else", agentsName, http.StatusFound, "", false, "302 Found", 1},
		{"something else", agentsName, http.StatusOK, "ok", false, "invalid character", 1},
		{"the certificate of something else", "node-1", http.StatusOK, good, false, "certificate is valid for node-1", 0},
		{"another certificate for the name", agentsName, http.StatusOK, good, true, "certificate signed by unknown authority", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			port, ca := serve(t, tc.host, answer(tc.status, tc.body))
			if tc.otherCA {
				_, ca = serve(t, agentsName, answer(tc.status, tc.body))
			}
			ask, err := HTTPS(folder(t, map[string]string{"ca.crt": ca, "token": "secret"}), flows.DeniedPath, flows.DecodeDenied)
			if err != nil {
				t.Fatal(err)
			}
			got, err := ask(t.Context(), &corev1.Pod{
				Spec:   corev1.PodSpec{Containers: []corev1.Container{{Args: []string{fmt.Sprintf("--metrics-bind-address=:%d", port)}}}},
				Status: corev1.PodStatus{PodIP: "127.0.0.1"},
			})
			if tc.want == "" && (err != nil || got.Node != "node-1" || len(got.Policies) != 1) || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %+v, %v; want %q", got, err, tc.want)
			}
			if len(tokens) != tc.asked {
				t.Fatalf("asked %d times, want %d", len(tokens), tc.asked)
			}
			for range tc.asked {
				if got := <-tokens; got != flows.DeniedPath+" Bearer secret" {
					t.Errorf("asked %s", got)
				}
			}
		})
	}
	for missing, file := range map[string]string{"ca.crt": "token", "token": "ca.crt"} {
		if _, err := HTTPS(folder(t, map[string]string{file: "x"}), flows.DeniedPath, flows.DecodeDenied); err == nil || !strings.Contains(err.Error(), missing) {
			t.Errorf("without %s: %v", missing, err)
		}
	}
}

// The port is that of the agent's flag, which strip leaves in the pod.
func TestPortOfAgent(t *testing.T) {
	const flag = "--metrics-bind-address"
	for _, tc := range []struct {
		containers [][]string
		want       string // or part of the error
	}{
		{[][]string{{"--v=2"}}, "9080"},
		{[][]string{{"--v=2", flag + "=127.0.0.1:9081"}}, "9081"},
		{[][]string{{flag, "[::1]:9082"}}, "9082"},
		{[][]string{{"--a-sidecar"}, {flag + "=$(HOST_IP):9083"}}, "9083"},
		{[][]string{{flag}}, "9080"},
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
