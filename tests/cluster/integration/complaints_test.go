package integration

import (
	"os"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/controlplane"
)

// documented returns the one command of docs/status.md that contains all parts,
// without "kubectl" and without redirections, split as a shell would split it.
func documented(t *testing.T, parts ...string) []string {
	t.Helper()
	text := must[[]byte](t)(os.ReadFile("../../../docs/status.md"))
	var found []string
	for line := range strings.Lines(string(text)) {
		missing := slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) })
		if strings.HasPrefix(line, "kubectl ") && !missing {
			command, _, _ := strings.Cut(line, " | ")
			found = append(found, strings.TrimSpace(command))
		}
	}
	if len(found) != 1 {
		t.Fatalf("docs/status.md has %d commands with %q, want 1", len(found), parts)
	}
	var fields []string
	quoted := false
	for _, word := range strings.FieldsFunc(found[0], func(r rune) bool {
		if r == '\'' {
			quoted = !quoted
		}
		return r == ' ' && !quoted
	}) {
		fields = append(fields, strings.ReplaceAll(word, "'", ""))
	}
	return fields[1:]
}

// Administrators list the findings about all policies of a cluster with the commands
// of docs/status.md.
func TestDocumentedCommandsListFindings(t *testing.T) {
	onWriters(t, func(t *testing.T, plane *controlplane.ControlPlane, inStatus bool) {
		shop, bank := newCluster(t, plane), newCluster(t, plane)
		k := newKubectl(t, plane.Admin())
		for _, text := range []string{
			nodePorts(shop.namespace, "a"), nodePorts(shop.namespace, "b"), nodePorts(bank.namespace, "c"), plain(bank.namespace, "fine"),
		} {
			k.apply(text)
		}
		w := startWriter(t, asWriter(t, plane), "--feature-gates=EndPort=false")
		w.settled("NetworkPolicy", map[string]string{
			`reason="PolicyAccepted",type="Accepted"`:            "4",
			`reason="FeatureNotSupported",type="PartialFailure"`: "3",
		})

		place := ".metadata.annotations"
		if inStatus {
			place = ".status.conditions"
		}
		listed := lines(k.run(documented(t, "-A -o custom-columns=", place)...))
		for _, c := range []struct {
			namespace, name string
			found           bool
		}{{shop.namespace, "a", true}, {shop.namespace, "b", true}, {bank.namespace, "c", true}, {bank.namespace, "fine", false}} {
			line := listed[c.namespace+" "+c.name]
			if got := strings.Contains(line, "ports[1].endPort"); got != c.found {
				t.Errorf("%s/%s has findings: %t, want %t: %s", c.namespace, c.name, got, c.found, line)
			}
		}
		if inStatus {
			return // conditions in the status need no Events
		}
		events := k.run(documented(t, "get events -A")...)
		for _, name := range []string{"networkpolicy/a", "networkpolicy/b", "networkpolicy/c"} {
			if !strings.Contains(events, name) {
				t.Errorf("no Event about %s:\n%s", name, events)
			}
		}
	})
}

// lines returns the lines of a table by their first two columns.
func lines(table string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(table) {
		if fields := strings.Fields(line); len(fields) > 1 {
			all[fields[0]+" "+fields[1]] = line
		}
	}
	return all
}

func TestWriterSurvivesAPIServerRestart(t *testing.T) {
	onWriters(t, func(t *testing.T, plane *controlplane.ControlPlane, inStatus bool) {
		c := newCluster(t, plane)
		k := newKubectl(t, plane.Admin())
		startWriter(t, asWriter(t, plane), "--feature-gates=EndPort=false")
		k.apply(nodePorts(c.namespace, "before"))
		shows(k, c.namespace, "before", inStatus, unsupported)
		kept := k.run("get", "netpol", "-n", c.namespace, "before", "-o", "yaml")
		restart(t, plane, func() {})
		k.apply(nodePorts(c.namespace, "after"))
		shows(k, c.namespace, "after", inStatus, unsupported)
		if now := k.run("get", "netpol", "-n", c.namespace, "before", "-o", "yaml"); now != kept {
			t.Errorf("the restart changed\n%s\nto\n%s", kept, now)
		}
	})
}
