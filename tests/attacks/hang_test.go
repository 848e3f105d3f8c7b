package attacks

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/lab/labtest"
)

// TestHangingNFT has an nft that does not end while a policy comes: the agent is
// not ready after five seconds, and the policy is effective once nft ends again.
func TestHangingNFT(t *testing.T) {
	labtest.Need(t)
	real, err := exec.LookPath("nft")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	hang := filepath.Join(dir, "hang")
	script := "#!/bin/sh\nif [ -e " + hang + " ]; then sleep 1000; fi\nexec " + real + " \"$@\"\n"
	if err := os.WriteFile(filepath.Join(dir, "nft"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	c := labtest.NewCluster(t, 1, "x/web@1 app=web", "y/web@1 app=web")
	agent := c.Start(t)[0]
	c.Expect(t, labtest.Yes("y/web", "x/web", "tcp/80"))

	if err := os.WriteFile(hang, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	c.Apply(t, "policies", labtest.Policy("x", "deny", `{podSelector: {}, policyTypes: [Ingress]}`))
	if err := labtest.Within(t, func() bool {
		status, body, err := agent.Get(t.Context(), "/readyz")
		return err == nil && status == http.StatusServiceUnavailable && strings.Contains(body, "steering")
	}); err != nil {
		t.Error("ready while a policy is not effective")
	}
	if err := os.Remove(hang); err != nil {
		t.Fatal(err)
	}
	labtest.WaitReady(t, agent)
	c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"))
}
