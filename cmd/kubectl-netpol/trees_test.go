package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tree writes files into a new folder and makes it the working directory.
func tree(t *testing.T, files map[string]string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
}

const (
	treeDeployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  selector: {matchLabels: {app: web}}\n  template:\n    metadata: {labels: {app: web}}\n    spec: {containers: [{name: c}]}\n"
	treePolicy     = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: web}\nspec:\n  podSelector: {matchLabels: {app: web}}\n"
)

// A tree with faults that are not about policies is answered, with warnings. --strict refuses
// it, and --exclude leaves the faults out.
func TestTreesAreAnswered(t *testing.T) {
	tree(t, map[string]string{
		"t/a.yaml": treeDeployment + "---\n" + treePolicy, "t/list.json": "[1]\n",
		"t/ha/a.yaml": strings.Replace(treeDeployment, "{name: c}", "{name: c, ports: [{containerPort: 80}]}", 1),
	})
	const (
		list    = "t/list.json:1: a list, want an object"
		variant = "t/ha/a.yaml:1: Deployment default/web is already at t/a.yaml:1, and differs"
	)
	for command, tc := range map[string]struct {
		code int
		want []string
		not  string
	}{
		"check -f t":                            {exitYes, []string{"Warning: " + list, "Warning: " + variant + ": the first one counts"}, ""},
		"matrix -f t":                           {exitYes, []string{"Warning: " + list, "Warning: " + variant}, ""},
		"diff -f t -f t":                        {exitYes, []string{"Warning: " + list}, ""},
		"check -f t --strict":                   {exitError, []string{list, variant}, "Warning"},
		"matrix -f t --strict --exclude *.json": {exitError, []string{variant}, list},
		"matrix -f t --strict --exclude *.json --exclude ha": {exitYes, []string{"deploy/web"}, "Warning"},
		"matrix -f t --exclude [":                            {exitError, []string{"syntax error in pattern"}, ""},
		"matrix -f t/a.yaml -f t/ha/a.yaml":                  {exitYes, []string{"Replaced by what a later path has of the same name: Deployment default/web"}, "Warning"},
	} {
		t.Run(command, func(t *testing.T) {
			code, stdout, stderr := call(t, "", command)

			if code != tc.code {
				t.Errorf("got %d\n%s%s", code, stdout, stderr)
			}
			for _, want := range tc.want {
				if !strings.Contains(stdout+stderr, want) {
					t.Errorf("no %q in\n%s%s", want, stdout, stderr)
				}
			}
			if tc.not != "" && strings.Contains(stdout+stderr, tc.not) {
				t.Errorf("there is %q in\n%s%s", tc.not, stdout, stderr)
			}
		})
	}
}

// --helm renders a chart as if it was a last -f, with values. What it depends on is not
// downloaded.
func TestCharts(t *testing.T) {
	tree(t, map[string]string{
		"chart/Chart.yaml":            "apiVersion: v2\nname: shop\nversion: 1.0.0\n",
		"chart/values.yaml":           "policies: true\ntypes: [Ingress]\n",
		"chart/templates/web.yaml":    treeDeployment,
		"chart/templates/policy.yaml": "{{- if .Values.policies }}\n" + treePolicy + "  policyTypes: {{ toJson .Values.types }}\n{{- end }}\n",
		"egress.yaml":                 "types: [Egress]\n",
		"cluster/web.yaml":            treeDeployment + "---\n" + strings.ReplaceAll(treeDeployment, "web", "client"),
	})
	for command, tc := range map[string]struct {
		code int
		want string
	}{
		"check --helm chart":                                {exitYes, "0 findings in 1 policy"},
		"check -f chart":                                    {exitYes, "0 findings in 1 policy"},
		"check --helm chart --set policies=false":           {exitYes, "no policy isolates default/web"},
		"check --helm chart --set types={Ingress,Wrong}":    {exitNo, "chart/templates/policy.yaml: error: NetworkPolicy default/web spec.policyTypes[1]"},
		"diff -f cluster --helm chart":                      {exitNo, "no longer allowed: default/deploy/client"},
		"diff -f cluster --helm chart --values egress.yaml": {exitNo, "-> default/deploy/client"},
		"matrix --helm cluster":                             {exitError, "--helm=cluster: neither a folder with a Chart.yaml nor a .tgz"},
		"matrix -f cluster --set a=b":                       {exitError, "--values, --set: only with --helm"},
		"matrix --helm chart --values none.yaml":            {exitError, "none.yaml"},
		"check -f .":                                        {exitYes, "1 Helm chart (--helm renders one)"},
	} {
		t.Run(command, func(t *testing.T) {
			code, stdout, stderr := call(t, "", command)

			if code != tc.code || !strings.Contains(stdout+stderr, tc.want) {
				t.Errorf("got %d, want %d and %s\n%s%s", code, tc.code, tc.want, stdout, stderr)
			}
		})
	}
}
