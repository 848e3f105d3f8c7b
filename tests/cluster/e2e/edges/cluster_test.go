// Package edges tests what only a cluster shows: kubelets' probes, pods that start,
// the ways to a pod through kube-proxy and hostPorts, addresses that are used again,
// and what restarts and outages do to connections. "make e2e-edges" runs the tests on
// the cluster of "make cluster-up". On one without the agent they establish what works
// there: what policies deny is not checked then.
package edges

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// patience is how long something may take on a machine that is busy.
const patience = 4 * time.Minute

// Settings of tests/cluster/e2e/edges.sh.
var (
	withAgent = os.Getenv("EDGES_AGENT") != "none"
	state     = os.Getenv("EDGES_STATE") // the folder of the running cluster
	out       = os.Getenv("EDGES_OUT")   // the folder for reports
	agnhost   = os.Getenv("EDGES_AGNHOST")
	prober    = os.Getenv("EDGES_PROBER")
	prefix    = os.Getenv("EDGES_PREFIX") // of the nodes' network namespaces
)

func TestMain(m *testing.M) {
	if state == "" {
		fmt.Println("not run: make e2e-edges runs these tests on a cluster")
		return
	}
	os.Exit(m.Run())
}

// attempt runs a command in a node, in the control plane's network (cp), or kubectl.
func attempt(where string, args ...string) (string, error) {
	return attemptWith("", where, args...)
}

func attemptWith(input, where string, args ...string) (string, error) {
	command := exec.Command("../cluster/run.sh", append([]string{where}, args...)...)
	command.Stdin = strings.NewReader(input)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %s: %w: %s", where, strings.Join(args, " "), err, &stderr)
	}
	return stdout.String(), nil
}

func run(t *testing.T, where string, args ...string) string {
	t.Helper()
	output, err := attempt(where, args...)
	if err != nil {
		t.Fatal(err)
	}
	return output
}

func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return run(t, "kubectl", args...)
}

func apply(t *testing.T, manifest string) {
	t.Helper()
	if _, err := attemptWith(manifest, "kubectl", "apply", "-f", "-"); err != nil {
		t.Fatalf("%v\n%s", err, manifest)
	}
}

// eventually repeats check until it returns nil.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}

// newNamespace creates a namespace for the test and deletes it after it.
func newNamespace(t *testing.T) string {
	t.Helper()
	name := fmt.Sprintf("edges-%s-%d", strings.ToLower(strings.NewReplacer("Test", "", "/", "-", "_", "-").Replace(t.Name())), os.Getpid())
	kubectl(t, "create", "namespace", name)
	t.Cleanup(func() {
		if t.Failed() {
			for _, what := range []string{"pods", "events"} {
				output, _ := attempt("kubectl", "-n", name, "get", what, "-o", "wide")
				t.Log(output)
			}
		}
		if _, err := attempt("kubectl", "delete", "namespace", name, "--wait=false"); err != nil {
			t.Error(err)
		}
	})
	// Without it no pod is admitted.
	eventually(t, "the service account of "+name, func() error {
		_, err := attempt("kubectl", "-n", name, "get", "serviceaccount", "default")
		return err
	})
	return name
}

// A pod as the tests need it. The rest of its spec is in YAML, indented by two.
type pod struct {
	name, node string
	labels     string // YAML, in braces
	spec       string
}

func (p pod) manifest(namespace string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s, labels: %s}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 0
  automountServiceAccountToken: false
%s
`, p.name, namespace, p.labels, p.node, strings.Trim(p.spec, "\n"))
}

// container is the container of a pod that has one.
func container(image string, args ...string) string {
	quoted, err := json.Marshal(args)
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf("  containers:\n  - {name: main, image: %q, imagePullPolicy: IfNotPresent, args: %s}", image, quoted)
}

// start creates pods and waits until they are ready.
func start(t *testing.T, namespace string, pods ...pod) {
	t.Helper()
	var manifest strings.Builder
	args := []string{"-n", namespace, "wait", "--for=condition=Ready", "--timeout=" + patience.String()}
	for _, p := range pods {
		manifest.WriteString(p.manifest(namespace))
		args = append(args, "pod/"+p.name)
	}
	apply(t, manifest.String())
	kubectl(t, args...)
}

// policy is a NetworkPolicy. The spec is YAML, in braces.
func policy(t *testing.T, namespace, name, spec string) {
	t.Helper()
	apply(t, fmt.Sprintf("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: %s, namespace: %s}\nspec: %s\n", name, namespace, spec))
}

// addresses returns those of a pod, or of an object with such a list elsewhere.
func addresses(t *testing.T, path string, args ...string) []string {
	t.Helper()
	return strings.Fields(kubectl(t, append(append([]string{"get"}, args...), "-o", "jsonpath={"+path+"}")...))
}

func podAddresses(t *testing.T, namespace, name string) []string {
	t.Helper()
	return addresses(t, ".status.podIPs[*].ip", "-n", namespace, "pod", name)
}

// hostPort is an address and port, as in URLs.
func hostPort(address string, port int) string {
	if strings.Contains(address, ":") {
		address = "[" + address + "]"
	}
	return fmt.Sprintf("%s:%d", address, port)
}

// keep writes a report into the folder of reports.
func keep(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(out, name), []byte(content), 0o644); err != nil {
		t.Error(err)
	}
}
