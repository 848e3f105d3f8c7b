package agent

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"slices"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/base/httpserver"
)

// TestAgentsOfNodesOnly: an agent of a node that does not exist is refused before anything is asked. The
// writer names none.
func TestAgentsOfNodesOnly(t *testing.T) {
	var checked []string
	access := ofNodes(&httpserver.Access{Client: func(_ context.Context, c *x509.Certificate) error {
		checked = append(checked, c.Subject.CommonName)
		return nil
	}}, func(name string) bool { return name == "node-1" })
	agents := []string{"kube-network-policies agent"}
	for _, tc := range []struct {
		subject pkix.Name
		want    bool
	}{
		{pkix.Name{CommonName: "node-1", Organization: agents}, true},
		{pkix.Name{CommonName: "node-2", Organization: agents}, false},
		{pkix.Name{CommonName: "writer-0"}, true},
	} {
		if err := access.Client(t.Context(), &x509.Certificate{Subject: tc.subject}); (err == nil) != tc.want {
			t.Errorf("%v: %v", tc.subject, err)
		}
	}
	if !slices.Equal(checked, []string{"node-1", "writer-0"}) {
		t.Errorf("checked %q", checked)
	}
}
