package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// outsideScript writes a command for Config.Outside. It appends what it is asked to run to the
// returned file, serves until it is ended, and answers each attempt as if it was made.
func outsideScript(t *testing.T) (command []string, log string) {
	t.Helper()
	dir := t.TempDir()
	log = filepath.Join(dir, "log")
	script := filepath.Join(dir, "outside.sh")
	text := fmt.Sprintf(`echo "$*" >>%s
case $3 in
version) ;;
serve) trap 'kill $!; exit' TERM; sleep 600 & wait ;;
try) exec sed -u -E 's/.*"id":([0-9]+),"target":"([^"]*)".*/{"id":\1,"failure":""}/' ;;
*) echo "no $3 here" >&2; exit 1 ;;
esac
`, log)
	if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"sh", script}, log
}

func TestHostsOutside(t *testing.T) {
	w := newWorld(t)
	command, log := outsideScript(t)
	b := w.backend(t, Config{Outside: command})
	w.failure = func(string, string) string { return "timeout" } // of pods
	state := netpol.Model{Namespaces: []string{"x"}, Hosts: []netpol.Host{netpol.Outside()}}.State()
	if err := b.Apply(t.Context(), state); err != nil {
		t.Fatal(err)
	}

	over := netpol.TCP(80).Over(corev1.IPv4Protocol)
	outcomes, err := b.Probe(t.Context(), []netpol.Connection{
		{From: "outside/client", To: "x/a", Traffic: over},
		{From: "x/a", To: "outside/client", Traffic: over},
		{From: "outside/client", To: "x/b", Traffic: over},
	})
	if err != nil || outcomes[0] != netpol.Connected || outcomes[1] != netpol.TimedOut || outcomes[2] != netpol.Connected {
		t.Errorf("outcomes are %v, error %v", outcomes, err)
	}
	if got := b.target(netpol.Connection{To: "outside/client", Traffic: netpol.TCP(80).Over(corev1.IPv6Protocol)}); got != "tcp://[2001:db8::9]:80" {
		t.Errorf("connections to the host go to %q", got)
	}

	// The server stays as long as its ports do, and ends with the host.
	server := b.host("outside/client").server
	if serve := strings.Join(b.host("outside/client").serve, " "); serve != "prober serve -listen=:80 -listen=:81" {
		t.Errorf("the host runs %q", serve)
	}
	if err := b.Apply(t.Context(), state); err != nil || b.host("outside/client").server != server {
		t.Errorf("the server was started again (error %v)", err)
	}
	other := netpol.Model{Namespaces: []string{"x"}, Hosts: []netpol.Host{netpol.Outside()}, Ports: []int32{90}}.State()
	if err := b.Apply(t.Context(), other); err != nil || !server.hasEnded() {
		t.Errorf("the server of other ports goes on (error %v)", err)
	}
	server = b.host("outside/client").server
	if err := b.Apply(t.Context(), netpol.Model{Namespaces: []string{"x"}}.State()); err != nil || !server.hasEnded() || b.host("outside/client") != nil {
		t.Errorf("the server of a host that is gone goes on (error %v)", err)
	}

	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	// Servers may end before they write their line.
	if line := "203.0.113.9,2001:db8::9 prober try -at-once=32\n"; strings.Count(string(text), line) != 1 {
		t.Errorf("%q is not once in\n%s", line, text)
	}
}

// Without a host, scenarios that need one are skipped; with a command that does not work, the
// error has its output.
func TestHostsOutsideNeedACommand(t *testing.T) {
	w := newWorld(t)
	if features := w.backend(t, Config{}).Supports().Features; strings.Contains(fmt.Sprint(features), string(netpol.OutsideHosts)) {
		t.Errorf("hosts outside are supported: %v", features)
	}

	b := w.backend(t, Config{Outside: []string{"sh", "-c", "echo no such machine >&2; exit 3"}})
	err := b.Apply(t.Context(), netpol.Model{Hosts: []netpol.Host{netpol.Outside()}}.State())
	if err == nil || !strings.Contains(err.Error(), "host outside/client") || !strings.Contains(err.Error(), "no such machine") {
		t.Errorf("error: %v", err)
	}
}
