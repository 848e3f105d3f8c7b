package serve

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
	"sigs.k8s.io/kube-network-policies/pkg/base/httpserver"
)

// TestWriterAndAgents: the status writer and agents of other nodes are let in by different rules, and each gets
// what is for it alone.
func TestWriterAndAgents(t *testing.T) {
	var checked []string
	check := func(by string, err error) func(context.Context, *x509.Certificate) error {
		return func(_ context.Context, c *x509.Certificate) error {
			checked = append(checked, by+" "+c.Subject.CommonName)
			return err
		}
	}
	access := withAgents(&httpserver.Access{Client: check("writer", nil)}, check("agent", errors.New("refused")))
	handler := func(to module.Client, pattern string) module.Handler {
		return module.Handler{To: to, Pattern: pattern, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, pattern) })}
	}
	h := answers([]module.Handler{handler(module.Socket, "/socket"), handler(module.Socket|module.Writer, "/both"), handler(module.Agents, "/agents")})
	for _, tc := range []struct {
		subject pkix.Name
		admits  bool
		serves  []string
	}{
		{pkix.Name{CommonName: "node-1", Organization: []string{"kube-network-policies agent"}}, false, []string{"/agents"}},
		{pkix.Name{CommonName: "writer-0"}, true, []string{"/both"}},
	} {
		c := &x509.Certificate{Subject: tc.subject}
		if err := access.Client(t.Context(), c); (err == nil) != tc.admits {
			t.Errorf("%v: %v", tc.subject, err)
		}
		var served []string
		for _, path := range []string{"/socket", "/both", "/agents"} {
			r, w := httptest.NewRequest(http.MethodGet, path, nil), httptest.NewRecorder()
			r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c}}
			h.ServeHTTP(w, r)
			if w.Body.String() == path {
				served = append(served, path)
			}
		}
		if !slices.Equal(served, tc.serves) {
			t.Errorf("%v gets %q, want %q", tc.subject, served, tc.serves)
		}
	}
	if want := []string{"agent node-1", "writer writer-0"}; !slices.Equal(checked, want) {
		t.Errorf("checked %q, want %q", checked, want)
	}
}
