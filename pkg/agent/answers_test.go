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
	check := func(by string) func(context.Context, *x509.Certificate) error {
		return func(_ context.Context, c *x509.Certificate) error {
			checked = append(checked, by+" "+c.Subject.CommonName)
			return nil
		}
	}
	writer, mayBeNode := &httpserver.Access{Client: check("writer")}, func(name string) bool { return name == "node-1" }
	access := withAgents(writer, mayBeNode, check("agent"))
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
	if !slices.Equal(checked, []string{"agent node-1", "writer writer-0"}) {
		t.Errorf("checked %q", checked)
	}
	if withAgents(writer, mayBeNode, nil).Client(t.Context(), &x509.Certificate{Subject: pkix.Name{CommonName: "node-1", Organization: agents}}) == nil {
		t.Error("an agent that no module admits may ask")
	}
}
