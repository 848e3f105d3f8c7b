package main

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-network-policies/pkg/base/tlskey"
)

// An agent without a key starts. It asks no other agent, and its certificate says that it has no key.
func TestAgentWithoutAKeyStarts(t *testing.T) {
	for name, tc := range map[string]struct {
		file func(string) error
		key  bool
	}{
		"a key":      {func(file string) error { _, err := tlskey.Make(file); return err }, true},
		"none":       {func(string) error { return nil }, false},
		"a folder":   {func(file string) error { return os.Mkdir(file, 0o700) }, false},
		"half a key": {func(file string) error { return os.WriteFile(file, []byte("-----BEGIN"), 0o600) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "key")
			if err := tc.file(file); err != nil {
				t.Fatal(err)
			}
			o := newOptions()
			o.Kubeconfig = "x" // outside of the cluster
			o.serve.AnswersBindAddress = ":9082"
			if err := o.setAnswers(t.Context(), "node-1", &rest.Config{Host: "https://127.0.0.1:1"}, file); err != nil {
				t.Fatal(err)
			}
			served, err := o.serve.AnswersAccess.Certificate(nil)
			if err != nil {
				t.Fatal(err)
			}
			o.client = &rest.Config{Host: "https://127.0.0.1:1"}
			others, err := o.peers("node-1")
			if err != nil {
				t.Fatal(err)
			}
			if asks := others.Agents != nil; asks != tc.key || tlskey.IsAgents(served.Leaf) != tc.key || o.serve.AnswersAccess.Client == nil {
				t.Errorf("it asks other agents: %v, and its certificate is of %v", asks, served.Leaf.Subject)
			}
		})
	}
}
