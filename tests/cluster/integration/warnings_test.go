package integration

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/crds"
)

const warningsFile = "../../../install-warnings.yaml" // for servers from 1.30 on

// warnings are what a server has warned of.
type warnings struct {
	mu    sync.Mutex
	texts []string
}

func (w *warnings) HandleWarningHeader(_ int, _ string, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts = append(w.texts, text)
}

// take returns the warnings since the last call.
func (w *warnings) take() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := strings.Join(w.texts, "\n")
	w.texts = nil
	return text
}

// Authors are warned of fields that the agents cannot honour, and nothing is refused.
func TestServersWarnOfFields(t *testing.T) {
	plane := newest.start(t)
	k := newKubectl(t, plane.Admin())
	define(t, plane, crds.V015, crds.Standard)
	k.run("apply", "--server-side", "--validate=strict", "-f", warningsFile)
	ctx := context.WithoutCancel(t.Context())
	t.Cleanup(func() { must[string](t)(k.with(ctx, "", "delete", "--ignore-not-found", "-f", warningsFile)) })
	c := newCluster(t, plane)

	said := &warnings{}
	config := rest.CopyConfig(plane.Admin())
	config.WarningHandler = said
	client := must[*dynamic.DynamicClient](t)(dynamic.NewForConfig(config))
	create := func(resource, text string) string {
		t.Helper()
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
			t.Fatal(err)
		}
		r := schema.FromAPIVersionAndKind(u.GetAPIVersion(), u.GetKind()).GroupVersion().WithResource(resource)
		said.take()
		_, err := client.Resource(r).Namespace(u.GetNamespace()).Create(t.Context(), u, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			t.Errorf("refused: %v", err)
		}
		return said.take()
	}
	policy := func(enforcement string) string {
		return fmt.Sprintf("{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {namespace: %s, name: p, annotations: {kube-network-policies.x-k8s.io/enforcement: %s}}, spec: {podSelector: {}}}",
			c.namespace, enforcement)
	}

	// A server applies a new admission policy after a moment.
	eventually(t, func() string {
		if got := create("networkpolicies", policy("Audit")); !strings.Contains(got, "neither audit nor enforce") {
			return fmt.Sprintf("warned of a misspelt annotation: %q", got)
		}
		return ""
	})
	eventually(t, func() string {
		if got := create("adminnetworkpolicies", rangeANP.manifest()); !strings.Contains(got, "start is above its end") {
			return fmt.Sprintf("warned of a range backwards: %q", got)
		}
		return ""
	})
	for resource, text := range map[string]string{"networkpolicies": policy("audit"), "adminnetworkpolicies": fineANP.manifest()} {
		if got := create(resource, text); got != "" {
			t.Errorf("%s: warned of %q, want nothing", text, got)
		}
	}
}

// Older servers do not serve the kind, so the warnings have their own file.
func TestOlderServersDoNotKnowWarnings(t *testing.T) {
	_, err := newKubectl(t, statusOff.start(t).Admin()).try("", "apply", "--server-side", "--validate=strict", "-f", warningsFile)
	if err == nil || !strings.Contains(err.Error(), "no matches for kind") {
		t.Errorf("1.27: got %v, want that the kind is not known", err)
	}
}
