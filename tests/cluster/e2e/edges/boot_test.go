package edges

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// closedPods is how many pods of the node that is started again are closed, and
// addressesTried how many addresses after theirs are tried: a node gives the next ones.
const closedPods, addressesTried = 4, 24

// A node that loses power and is started again gives its pods other addresses. Nothing
// may reach closed pods at these before the node's agent decides packets. The addresses
// are tried all the time, from another node, before pods have them.
func TestPodsAreClosedAfterABoot(t *testing.T) {
	needAgent(t)
	namespace := newNamespace(t)
	policy(t, namespace, "closed", `{podSelector: {matchLabels: {app: closed}}, policyTypes: [Ingress]}`)
	var pods []pod
	for i := range closedPods {
		pods = append(pods, pod{fmt.Sprintf("closed-%d", i), "n2", "{edges: keep, app: closed}", container(prober, "serve", "-listen=:9090")})
	}
	// What has no policy shows that a pod can be reached where it is closed.
	open := pod{"open", "n2", "{edges: keep, app: open}", container(prober, "serve", "-listen=:9091")}
	start(t, namespace, append(pods, open)...)

	before := make(map[string]string)
	var last netip.Addr
	for _, p := range append(pods, open) {
		text := podAddresses(t, namespace, p.name)[0]
		before[p.name] = text
		if addr := netip.MustParseAddr(text); last.Compare(addr) < 0 {
			last = addr
		}
	}
	args := []string{"probe", "-interval=250ms", "-timeout=2s"}
	var tried []string
	for addr := last.Next(); len(tried) < addressesTried; addr = addr.Next() {
		tried = append(tried, addr.String())
		args = append(args, "-denied=tcp://"+hostPort(addr.String(), 9090))
	}
	start(t, namespace, pod{"prober", "n1", "{edges: keep, app: prober}", "  restartPolicy: Never\n" + container(prober, args...)})

	run(t, "stop", "n2")
	up := exec.Command("../cluster/up.sh")
	up.Env = append(os.Environ(), "AGENT="+filepath.Base(manifest))
	if output, err := up.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	for _, p := range append(pods, open) {
		eventually(t, "a new address of "+p.name, func() error {
			condition := kubectl(t, "-n", namespace, "get", "pod", p.name, "-o", `jsonpath={.status.podIPs[0].ip} {.status.conditions[?(@.type=="Ready")].status}`)
			address, ready, _ := strings.Cut(condition, " ")
			if address == before[p.name] || ready != "True" {
				return fmt.Errorf("%s", condition)
			}
			if !slices.Contains(tried, address) {
				t.Errorf("%s has %s, which is not tried", p.name, address)
			}
			return nil
		})
	}
	agentsReady(t)
	address := podAddresses(t, namespace, open.name)[0]
	if _, err := attempt("kubectl", "-n", namespace, "exec", "prober", "--", "prober", "probe", "-duration=1s", "-allowed=tcp://"+hostPort(address, 9091)); err != nil {
		t.Error(err)
	}
	kubectl(t, "-n", namespace, "exec", "prober", "--", "prober", "stop")
	eventually(t, "end of the prober", func() error {
		if phase := kubectl(t, "-n", namespace, "get", "pod", "prober", "-o", "jsonpath={.status.phase}"); phase != "Succeeded" && phase != "Failed" {
			return fmt.Errorf("phase %s", phase)
		}
		return nil
	})
	text := log(t, namespace, "prober")
	keep(t, "boot.json", text)
	check(t, text)
}
