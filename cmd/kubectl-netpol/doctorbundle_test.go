package main

import (
	"archive/tar"
	"compress/gzip"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// unpack returns the files of a bundle.
func unpack(t *testing.T, path string) map[string]string {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	packed, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for archive := tar.NewReader(packed); ; {
		header, err := archive.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = string(text)
	}
}

// The bundle has what a report needs, and nothing of what objects have beside that: everything else in
// them has the word canary here.
func TestBundle(t *testing.T) {
	p := newPatient()
	canary := map[string]string{"kubectl.kubernetes.io/last-applied-configuration": "canary"}
	secretive := func(o metav1.Object, spec *corev1.PodSpec) {
		o.SetAnnotations(canary)
		if spec == nil {
			return
		}
		if len(spec.Containers) == 0 {
			spec.Containers = []corev1.Container{{Name: "main"}}
		}
		spec.Containers[0].Args = []string{"--password=canary"}
		spec.Containers[0].Env = []corev1.EnvVar{{Name: "PASSWORD", Value: "canary"}}
	}
	agent, writer, node := agentPod("a"), writerPod(), linuxNode("a")
	secretive(agent, &agent.Spec)
	secretive(writer, &writer.Spec)
	secretive(node, nil)
	other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "canary"}}
	secretive(other, &other.Spec)
	tracker := p.Tracker()
	for _, err := range []error{
		tracker.Update(podsResource, agent, "kube-system"), tracker.Update(podsResource, writer, "kube-system"), tracker.Add(other),
		tracker.Update(corev1.SchemeGroupVersion.WithResource("nodes"), node, ""),
		tracker.Add(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "canary"}, StringData: canary}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	policy := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"canary": "canary"}}}
	policy.SetGroupVersionKind(schema.GroupVersionKind{Group: "networking.k8s.io", Version: "v1", Kind: "NetworkPolicy"})
	policy.SetNamespace("shop")
	policy.SetName("db")
	policy.SetAnnotations(map[string]string{"note": "canary", conditionsAnnotation: `[{"type":"Accepted","status":"True","reason":"PolicyAccepted","observedGeneration":3}]`})
	r := schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"}
	if _, err := p.objects.Resource(r).Namespace("shop").Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "bundle.tar.gz")

	code, out := p.examine(t, "--connect=false", "--bundle", path)

	files := unpack(t, path)
	want := []string{
		"agents/kube-system/agent-a.log", "agents/kube-system/agent-a.metrics", "agents/kube-system/agent-a.previous.log", "agents/kube-system/agent-a.table",
		"agents/kube-system/agent-b.log", "agents/kube-system/agent-b.metrics", "agents/kube-system/agent-b.previous.log", "agents/kube-system/agent-b.table", "diagnosis.json", "nodes",
		"policies/AdminNetworkPolicy", "policies/BaselineAdminNetworkPolicy", "policies/ClusterNetworkPolicy", "policies/NetworkPolicy",
		"status-writer/kube-system/writer.log", "status-writer/kube-system/writer.previous.log",
	}
	if got := slices.Sorted(maps.Keys(files)); code != exitYes || !slices.Equal(got, want) {
		t.Errorf("exit code %d, files %q\n%s", code, got, out)
	}
	for name, content := range files {
		if strings.Contains(name+content, "canary") {
			t.Errorf("%s: %s", name, content)
		}
	}
	for name, part := range map[string]string{
		"diagnosis.json": `"version": "v0.2.0"`, "agents/kube-system/agent-a.table": "ours", "agents/kube-system/agent-b.metrics": "netpol_node_problems",
		"policies/NetworkPolicy": "shop/db generation 0\n  Accepted=True PolicyAccepted generation 3", "agents/kube-system/agent-a.log": "fake logs",
	} {
		if !strings.Contains(files[name], part) {
			t.Errorf("%s: %q", name, files[name])
		}
	}
	for _, a := range p.Actions() {
		if a.GetResource().Resource == "secrets" || a.GetResource().Resource == "configmaps" || a.GetNamespace() == "shop" {
			t.Errorf("a request to %s %s", a.GetVerb(), a.GetResource().Resource)
		}
	}
	if code, out := p.examine(t, "--connect=false", "--bundle", path); code != exitError || !strings.Contains(out, "--bundle: open ") {
		t.Errorf("a file that exists: exit code %d\n%s", code, out)
	}
}

func TestSecretsOfLogsAreLeftOut(t *testing.T) {
	for text, want := range map[string]string{
		`"Authorization: Bearer abcdef-0123456789" sent`:                 `"Authorization: Bearer <left out>" sent`,
		"token=0123456789abcdef, retry":                                  "token=<left out>, retry",
		`{"password":"correct-horse"}`:                                   `{"password":"<left out>"}`,
		"got eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrIn0.c2lnbmF0dXJl from api": "got <left out> from api",
		`"Steering updated" pods=3`:                                      `"Steering updated" pods=3`,
	} {
		if got := string(secret.ReplaceAll([]byte(text), []byte("$2$3<left out>"))); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
