package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-network-policies/pkg/status"
	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/controlplane"
)

// programs builds agent and status writer, once, and returns their folder.
var programs = sync.OnceValues(func() (string, error) {
	folder := filepath.Join(scratch, "programs") + "/"
	said, err := exec.Command("go", "build", "-C", "../../..", "-o", folder, "./cmd/kube-network-policies", "./cmd/status-writer").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("build the programs: %w: %s", err, said)
	}
	return folder, err
})

// program returns the file of a program that is tested.
func program(t *testing.T, name string) string {
	t.Helper()
	return filepath.Join(must[string](t)(programs()), name)
}

// writer is a running status writer program.
type writer struct {
	t       *testing.T
	cmd     *exec.Cmd
	metrics string // URL
	log     bytes.Buffer
	stopped bool
}

// startWriter runs a status writer until the test ends or it is stopped.
func startWriter(t *testing.T, as *rest.Config, args ...string) *writer {
	t.Helper()
	address := freeAddress(t)
	w := &writer{t: t, metrics: "http://" + address + "/metrics"}
	w.cmd = writerCommand(t, as, append(args, "--metrics-bind-address="+address)...)
	w.cmd.Stdout, w.cmd.Stderr = &w.log, &w.log
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.stop)
	return w
}

func writerCommand(t *testing.T, as *rest.Config, args ...string) *exec.Cmd {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := controlplane.Kubeconfig(as, kubeconfig); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program(t, "status-writer"), append(args, "--kubeconfig="+kubeconfig)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// stop ends the writer as a kubelet does: it gives up its Lease.
func (w *writer) stop() {
	if w.stopped {
		return
	}
	w.stopped = true
	_ = w.cmd.Process.Signal(syscall.SIGTERM) // fails if it has ended, which Wait reports
	if err := w.cmd.Wait(); err != nil || w.t.Failed() {
		w.t.Errorf("status writer ended: %v\n%s", err, w.log.String())
	}
}

// metric returns the value of a series, "" if it does not exist.
func (w *writer) metric(series string) string {
	w.t.Helper()
	response, err := http.Get(w.metrics)
	if err != nil {
		return "" // not yet
	}
	defer response.Body.Close()
	text := must[[]byte](w.t)(io.ReadAll(response.Body))
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// settled waits until the writer has seen this number of policies of a kind with a true
// condition of each type, and has nothing to write.
func (w *writer) settled(kind string, conditions map[string]string) {
	w.t.Helper()
	eventually(w.t, func() string {
		for labels, want := range conditions {
			series := fmt.Sprintf(`netpol_status_conditions{kind=%q,%s}`, kind, labels)
			if got := w.metric(series); got != want {
				return fmt.Sprintf("%s is %q, want %s", series, got, want)
			}
		}
		if oldest := w.metric("netpol_status_oldest_unwritten_seconds"); oldest != "0" {
			return fmt.Sprintf("the oldest pending write is %q seconds old", oldest)
		}
		return ""
	})
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l := must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
	defer l.Close()
	return l.Addr().String()
}

// eventually waits until nothing is wrong any more.
func eventually(t *testing.T, wrong func() string) {
	t.Helper()
	eventuallyWithin(t, patience, wrong)
}

func eventuallyWithin(t *testing.T, limit time.Duration, wrong func() string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		what := wrong()
		if what == "" {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("after %s: %s", limit, what)
		}
	}
}

// shownConditions are the conditions that an author sees on a policy, by type.
type shownConditions map[string]metav1.Condition

// ours are the types of the writer's conditions.
var ours = []string{status.Accepted, status.PartialFailure, status.Failure}

// summary is our conditions in a line, without those that report no failure: annotations leave them out.
func (c shownConditions) summary() string {
	var parts []string
	for _, kind := range ours {
		if one, ok := c[kind]; ok && one.Reason != status.NoFailure {
			parts = append(parts, fmt.Sprintf("%s=%s/%s", kind, one.Status, one.Reason))
		}
	}
	return strings.Join(parts, " ")
}

// The summaries of conditions.
const (
	clean       = "Accepted=True/PolicyAccepted"
	unsupported = "Accepted=True/PolicyAccepted PartialFailure=True/FeatureNotSupported"
)

// partial is the summary for a policy that is enforced in part.
func partial(reason string) string {
	return "Accepted=True/PolicyAccepted PartialFailure=True/" + reason
}

// failed is the summary for a policy that is not enforced.
func failed(reason string) string {
	return "Accepted=False/" + reason + " Failure=True/" + reason
}

// conditionsOf reads the conditions of a policy where the server keeps them:
// in the status or in the annotation, never in both.
func conditionsOf(t *testing.T, policy *unstructured.Unstructured, inStatus bool) shownConditions {
	t.Helper()
	inside, _, err := unstructured.NestedSlice(policy.Object, "status", "conditions")
	if err != nil {
		t.Fatal(err)
	}
	annotation, annotated := policy.GetAnnotations()[status.Annotation]
	if inStatus && annotated || !inStatus && len(inside) > 0 {
		t.Errorf("%s has conditions in the wrong place: annotation %q, status %v", policy.GetName(), annotation, inside)
	}
	text := []byte(annotation)
	if inStatus {
		text = must[[]byte](t)(json.Marshal(inside))
	}
	var list []metav1.Condition
	if len(text) > 0 {
		if err := json.Unmarshal(text, &list); err != nil {
			t.Fatalf("conditions of %s: %v in %q", policy.GetName(), err, text)
		}
	}
	conditions := shownConditions{}
	for _, c := range list {
		conditions[c.Type] = c
		if !inStatus && c.Reason == status.NoFailure {
			t.Errorf("the annotation of %s reports that there is no failure: %s", policy.GetName(), annotation)
		}
	}
	written := 0
	for _, kind := range ours {
		if _, found := conditions[kind]; found {
			written++
		}
	}
	if inStatus && written != 0 && written != len(ours) {
		t.Errorf("the status of %s has not all of %v: %v", policy.GetName(), ours, inside)
	}
	return conditions
}

// policies reads and writes policies as unstructured objects, because the current Go types
// have no status.
func policies(t *testing.T, plane *controlplane.ControlPlane, namespace string) dynamic.ResourceInterface {
	t.Helper()
	client := must[*dynamic.DynamicClient](t)(dynamic.NewForConfig(plane.Admin()))
	return client.Resource(networkingv1.SchemeGroupVersion.WithResource("networkpolicies")).Namespace(namespace)
}
