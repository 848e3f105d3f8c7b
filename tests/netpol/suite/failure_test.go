package suite

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

func TestAlone(t *testing.T) {
	for want, args := range map[string][]string{
		"netpol -run '^a (b)$'":                                    nil,
		"netpol -families IPv4,IPv6 -v -run '^a (b)$'":             {"-run", "a|b", "-families", "IPv4,IPv6", "--profile=all", "-v"},
		"netpol '-outside=env A=1 o.sh' -settle 1s -run '^a (b)$'": {"-outside=env A=1 o.sh", "-profile", "kubernetes", "-settle", "1s", "--run=a"},
	} {
		want = strings.Replace(want, "(b)", `\(b\)`, 1)
		if got := alone("netpol", args, "a (b)"); got != want {
			t.Errorf("alone(%q) = %s, want %s", args, got, want)
		}
	}
	if got := quoted("it's"); got != `'it'\''s'` {
		t.Errorf("it's becomes %s", got)
	}
}

// The explainer gets the objects and the first wrong cell. Its exit status is its answer.
func TestExplain(t *testing.T) {
	model := netpol.Model{Namespaces: []string{"x"}, Hosts: []netpol.Host{netpol.Outside()}}
	result := netpol.Runner{Backend: open{}}.Play(t.Context(), netpol.Scenario{Name: "deny", Model: model, Steps: []netpol.Step{{
		Change: func(s *netpol.State) { s.Apply(netpol.NewPolicy("x", "p", netpol.DenyIngress())) },
		Want:   func(r *netpol.Reachability) { r.ExpectPeer("outside/*", "x/a", false) },
	}}})
	if result.Err != nil || len(result.Steps) == 0 {
		model.Hosts = nil
		t.Fatalf("%v, unsupported %v", result.Err, result.Unsupported)
	}
	folder := t.TempDir()
	t.Setenv("PATH", folder)
	const line = "kubectl-netpol explain 203.0.113.9 x/a -f - --family IPv4 --protocol TCP --port 80"
	if got := explain(t.Context(), result); got != "Explained by "+line+", which is not in PATH\n" {
		t.Errorf("without the explainer: %s", got)
	}
	script := "#!/bin/sh\necho \"$*\"; kinds=$(/bin/grep -cE '^kind: (Pod|Namespace|NetworkPolicy)$'); echo $kinds objects; exit 1\n"
	if err := os.WriteFile(filepath.Join(folder, explainer), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	want := "Explained by " + line + ":\n" + strings.TrimPrefix(line, explainer+" ") + "\n5 objects\n"
	if got := explain(t.Context(), result); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := explain(t.Context(), netpol.Result{}); got != "" {
		t.Errorf("nothing is wrong, and explained is %s", got)
	}
}
