package denials

import (
	"crypto/tls"
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/flows"
	"sigs.k8s.io/kube-network-policies/pkg/httpserver"
)

// serve serves at a port of this machine with a certificate for a name, which is written to
// the file that is returned.
func serve(t *testing.T, name string, h http.HandlerFunc) (port uint16, caFile string) {
	t.Helper()
	certificate, err := httpserver.SelfSigned(name)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := certificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	caFile = write(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h, TLSConfig: &tls.Config{GetCertificate: certificate}, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = server.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { _ = server.Close() })
	return uint16(listener.Addr().(*net.TCPAddr).Port), caFile
}

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
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
			port, caFile := serve(t, tc.host, answer(tc.status, tc.body))
			if tc.otherCA {
				_, caFile = serve(t, agentsName, answer(tc.status, tc.body))
			}
			ask, err := HTTPS(port, caFile, write(t, "secret"))
			if err != nil {
				t.Fatal(err)
			}
			got, err := ask(t.Context(), &corev1.Pod{Status: corev1.PodStatus{PodIP: "127.0.0.1"}})
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
	for _, files := range [][2]string{{"none", write(t, "x")}, {write(t, "x"), "none"}} {
		if _, err := HTTPS(1, files[0], files[1]); err == nil {
			t.Errorf("%v: no error", files)
		}
	}
}
