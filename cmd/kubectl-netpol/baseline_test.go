package main

import (
	"os"
	"strings"
	"testing"
)

const (
	knownMistake = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: a, namespace: shop}\nspec:\n  podSelector: {}\n  policyTypes: [Ingress]\n  egress: [{}]\n"
	newMistake   = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: b, namespace: shop}\nspec:\n  podSelector: {}\n  policyTypes: [Ingress]\n  egress: [{}]\n"
)

// Findings of a baseline are quiet wherever they are now; others are not.
func TestBaseline(t *testing.T) {
	tree(t, map[string]string{"a.yaml": knownMistake})
	code, baseline, stderr := call(t, "", "check -f a.yaml -o json")
	if code != exitNo {
		t.Fatalf("got %d\n%s%s", code, baseline, stderr)
	}
	for name, text := range map[string]string{
		"base.json": baseline, "empty.json": `{"findings": []}`, "other.json": "{}", "bad.json": "[",
		"moved.yaml": "# a comment\n" + knownMistake, "more.yaml": knownMistake + newMistake, "fixed.yaml": strings.Replace(knownMistake, "  egress: [{}]\n", "", 1),
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for command, tc := range map[string]struct {
		code int
		want string
	}{
		"-f a.yaml --baseline base.json":            {exitYes, "0 findings in 1 policy: 1 known"},
		"-f moved.yaml --baseline base.json":        {exitYes, "0 findings in 1 policy: 1 known"},
		"-f more.yaml --baseline base.json":         {exitNo, "1 finding in 2 policies: 1 error, 1 known"},
		"-f more.yaml --baseline base.json -o json": {exitNo, `"known": 1`},
		"-f fixed.yaml --baseline base.json":        {exitYes, "1 finding is gone of base.json: write it again"},
		"-f a.yaml --baseline empty.json":           {exitNo, "1 finding in 1 policy: 1 error\n"},
		"-f a.yaml --baseline other.json":           {exitError, "other.json: no findings in it: write it with check -o json"},
		"-f a.yaml --baseline bad.json":             {exitError, "bad.json: "},
		"-f a.yaml --baseline none.json":            {exitError, "none.json"},
	} {
		t.Run(command, func(t *testing.T) {
			code, stdout, stderr := call(t, "", "check "+command)

			if code != tc.code || !strings.Contains(stdout+stderr, tc.want) {
				t.Errorf("got %d, want %d and %q\n%s%s", code, tc.code, tc.want, stdout, stderr)
			}
		})
	}
}
