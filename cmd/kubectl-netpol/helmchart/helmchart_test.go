package helmchart

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// write writes the files of a chart named shop into a new folder, and returns its path.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "folder")
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func shop() map[string]string {
	return map[string]string{
		"Chart.yaml":                   "apiVersion: v2\nname: shop\nversion: 1.0.0\ndependencies: [{name: db, version: 1.0.0, condition: db.enabled}]\n",
		"values.yaml":                  "port: 80\npolicies: true\ndb: {enabled: true}\n",
		"values.schema.json":           `{"$ref": "https://example.com/schema.json"}`,
		"templates/_helpers.tpl":       `{{ define "shop.name" }}{{ .Release.Name }}.{{ .Release.Namespace }}{{ end }}`,
		"templates/NOTES.txt":          "Thanks for {{ .Release.Name }}.\n",
		"templates/tests/test.yaml":    "kind: Pod\n",
		"templates/policy.yaml":        "{{- if .Values.policies }}\nname: {{ include \"shop.name\" . }}\nport: {{ .Values.port }}\nnode: {{ lookup \"v1\" \"Node\" \"\" \"\" }}\n{{- end }}\n",
		"charts/db/Chart.yaml":         "apiVersion: v2\nname: db\nversion: 1.0.0\n",
		"charts/db/templates/all.yaml": "name: {{ .Chart.Name }}\n",
		"more.yaml":                    "port: 1\npolicies: true\n",
		"most.yaml":                    "port: 2\n",
	}
}

func TestRender(t *testing.T) {
	chart := write(t, shop())
	for name, tc := range map[string]struct {
		values Values
		want   []string
	}{
		"defaults":       {Values{}, []string{"charts/db/templates/all.yaml: name: db", "templates/policy.yaml: name: shop.prod port: 80 node: map[]"}},
		"files":          {Values{Files: []string{chart + "/more.yaml", chart + "/most.yaml"}}, []string{"charts/db/templates/all.yaml: name: db", "templates/policy.yaml: name: shop.prod port: 2 node: map[]"}},
		"settings first": {Values{Files: []string{chart + "/more.yaml"}, Set: []string{"port=3,db.enabled=false"}}, []string{"templates/policy.yaml: name: shop.prod port: 3 node: map[]"}},
		"nothing":        {Values{Set: []string{"policies=false", "db.enabled=false"}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			templates, err := Render(chart, "prod", tc.values)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, r := range templates {
				got = append(got, r.Name+": "+strings.Join(strings.Fields(r.Text), " "))
			}
			if strings.Join(got, "\n") != strings.Join(tc.want, "\n") {
				t.Errorf("got %q\nwant %q", got, tc.want)
			}
		})
	}
}

func TestChartsThatCannotBeRendered(t *testing.T) {
	for name, tc := range map[string]struct {
		file, text string
		values     Values
		want       string
	}{
		"a missing dependency":  {"Chart.yaml", "apiVersion: v2\nname: shop\nversion: 1.0.0\ndependencies: [{name: cache, version: 1.0.0, repository: 'https://example.com'}]\n", Values{}, "charts/ lacks cache, and nothing is downloaded: run helm dependency build"},
		"a template":            {"templates/bad.yaml", "{{ .Values.a.b.c }}\n", Values{}, "templates/bad.yaml"},
		"a required value":      {"templates/bad.yaml", "{{ required \"say what\" .Values.what }}\n", Values{}, "say what"},
		"a missing values file": {"more.yaml", "", Values{Files: []string{"none.yaml"}}, "none.yaml"},
		"bad values":            {"more.yaml", "", Values{Files: []string{"Chart.lock/bad.yaml"}}, "bad.yaml"},
		"a bad setting":         {"more.yaml", "", Values{Set: []string{"a"}}, `setting "a"`},
		"no chart":              {"Chart.yaml", "hello\n", Values{}, "Chart.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			files := shop()
			files[tc.file] = tc.text
			if _, err := Render(write(t, files), "prod", tc.values); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
}
