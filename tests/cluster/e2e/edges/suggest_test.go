package edges

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// enforcement is the annotation that has a policy audited.
const enforcement = "kube-network-policies.x-k8s.io/enforcement"

// From an audited default deny to policies that are enforced: what the agents of both nodes
// recorded is read through the API server, and allowed by the suggestion. Everything else is
// denied then.
func TestSuggest(t *testing.T) {
	needAgent(t)
	p := newPair(t)
	policy(t, p.namespace, "trial", `{podSelector: {}, policyTypes: [Ingress, Egress]}`)
	kubectl(t, "-n", p.namespace, "annotate", "networkpolicy", "trial", enforcement+"=audit")
	manifests := filepath.Join(t.TempDir(), "suggested.yaml")
	eventually(t, "a suggestion", func() error {
		if err := p.connects("client", true); err != nil {
			return err
		}
		command := exec.Command("../cluster/run.sh", "cp", netpol, "suggest", "--kubeconfig="+asAdministrator(), "-n", p.namespace)
		var errs bytes.Buffer
		command.Stderr = &errs
		text, err := command.Output()
		if err != nil {
			return fmt.Errorf("%w: %s", err, &errs)
		}
		for _, policy := range []string{"suggested-client", "suggested-server"} { // each is of another node's records
			if !strings.Contains(string(text), "name: "+policy+"\n") || !strings.Contains(string(text), "# client -> server, TCP 8080: ") {
				return fmt.Errorf("no policy %s:\n%s", policy, text)
			}
		}
		return os.WriteFile(manifests, text, 0o600)
	})
	kubectl(t, "apply", "-f", manifests)
	if err := p.connects("other", true); err != nil {
		t.Errorf("audited policies deny: %v", err)
	}
	kubectl(t, "-n", p.namespace, "annotate", "networkpolicy", "--all", enforcement+"-")
	eventually(t, "the suggestion is enforced", func() error { return p.connects("other", false) })
	if err := p.connects("client", true); err != nil {
		t.Errorf("what was recorded does not pass: %v", err)
	}
}
