package clusterfiles

import (
	"slices"
	"strings"
	"testing"
)

// What is wrong with a tree is a warning with file and line, and the rest is read. --strict
// refuses it.
func TestTreesAsTheyAre(t *testing.T) {
	for name, tc := range map[string]struct {
		file, text string
		warning    string
		error      string // of Strict, if it differs
	}{
		"text":                    {"notes.yaml", "hello\n", `tree/notes.yaml:1: "hello" is text, want an object with apiVersion and kind: passed over`, ""},
		"a JSON list":             {"b.json", "[{\"a\": 1}]\n", "tree/b.json:1: a list, want an object with apiVersion and kind; several objects are separated by lines of ---, or are the items of a List: passed over", ""},
		"no YAML":                 {"b.yaml", "a: [\n", "tree/b.yaml:2: did not find expected node content while parsing a flow node: passed over, with what is below it", ""},
		"a template":              {"b.yaml", web + "---\n{{- if .Values.policies }}\nkind: NetworkPolicy\n{{- end }}\n", "(the file has {{: of a template, only what it renders can be read): passed over, with what is below it", ""},
		"a policy in a template":  {"b.yaml", strings.Replace(denyAll, "name: deny", "name: '{{ .Values.name }}'", 1), "(the file has {{: of a template, only what it renders can be read): passed over", ""},
		"an object without kind":  {"b.yaml", "apiVersion: v1\nspec: {}\n", "tree/b.yaml:1: kind: missing, not an object of Kubernetes: passed over", ""},
		"a newer field of a pod":  {"b.yaml", strings.Replace(web, "spec: {containers", "spec: {newField: 1, containers", 1), `tree/b.yaml:8: unknown field "spec.template.spec.newField": the field is ignored`, ""},
		"an older version":        {"b.yaml", strings.Replace(web, "apps/v1", "extensions/v1beta1", 1), `tree/b.yaml:1: apiVersion: Deployment of "extensions/v1beta1" is not read, only of "apps/v1": write it as "apps/v1": passed over`, ""},
		"a type":                  {"b.yaml", strings.Replace(web, "8080", "http", 1), "tree/b.yaml:8: spec.template.spec.containers.ports.containerPort: got string, want int32: passed over", ""},
		"variants":                {"b.yaml", strings.Replace(web, "8080", "8081", 1), "tree/b.yaml:1: Deployment default/web is already at tree/a.yaml:1, and differs: the first one counts", ""},
		"a patch":                 {"b.yaml", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: db}\nspec:\n  template: {spec: {containers: [{name: db}]}}\n", "tree/b.yaml:4: neither a selector nor labels of pods: probably a patch: passed over", ""},
		"a remote kustomization":  {"k/kustomization.yaml", "resources: ['https://example.com/a.yaml', 'github.com/example/b?ref=v1']\n", `tree/k/kustomization.yaml:1: resources: "https://example.com/a.yaml", resources: "github.com/example/b?ref=v1" are not local paths, and nothing is downloaded; vendor that with kustomize localize`, ""},
		"a kustomization of none": {"k/kustomization.yaml", "resources: [no.yaml]\n", "kustomize tree/k: ", ""},
	} {
		t.Run(name, func(t *testing.T) {
			folder(t, map[string]string{"tree/a.yaml": web, "tree/" + tc.file: tc.text})

			o, err := Read([]string{"tree"}, nil, Options{})
			if err != nil || len(o.Pods) != 1 {
				t.Fatalf("got %v %v", o, err)
			}
			if len(o.Warnings) != 1 || !strings.Contains(o.Warnings[0], tc.warning) || o.Notes()[0] != "Warning: "+o.Warnings[0] {
				t.Errorf("got %q\nwant %s", o.Warnings, tc.warning)
			}

			if _, err := Read([]string{"tree"}, nil, Options{Strict: true}); err == nil || !strings.HasPrefix(o.Warnings[0], err.Error()) {
				t.Errorf("strict: got %v", err)
			}
		})
	}
}

// Variants of an installation run other programs in the same pods, which no policy sees.
func TestVariantsOfOnePod(t *testing.T) {
	folder(t, map[string]string{
		"tree/a.yaml":    web,
		"tree/ha/a.yaml": strings.NewReplacer("selector:", "replicas: 2\n  selector:", "ports:", "args: [--ha], ports:").Replace(web),
	})
	o, err := Read([]string{"tree"}, nil, Options{Strict: true})
	if err != nil || len(o.Pods) != 1 || o.Warnings != nil {
		t.Errorf("got %v %v", o, err)
	}
}

// What may hide a policy is never passed over, unless it is a template.
func TestPoliciesOfTreesAreStrict(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"an unknown field":       {denyAll + "  ingres: []\n", "tree/b.yaml:7: spec.ingres"},
		"a misspelt kind":        {strings.Replace(denyAll, "NetworkPolicy", "NetworkPolicie", 1), "did you mean NetworkPolicy"},
		"an old version":         {strings.Replace(denyAll, "networking.k8s.io/v1", "extensions/v1beta1", 1), "is not read"},
		"no apiVersion":          {"kind: NetworkPolicy\nspec: {podSelector: {}}\n", "apiVersion: missing"},
		"no kind":                {"apiVersion: networking.k8s.io/v1\nspec: {podSelector: {}}\n", "kind: missing"},
		"a policy behind faults": {"a: [\n---\n" + denyAll, "tree/b.yaml:2: did not find"},
		"in JSON":                {`[{"kind": "NetworkPolicy"}]`, "a list, want"},
	} {
		t.Run(name, func(t *testing.T) {
			folder(t, map[string]string{"tree/a.yaml": web, "tree/b.yaml": tc.text})
			if _, err := Read([]string{"tree"}, nil, Options{}); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
}

// What API servers refuse is returned apart, except templates, which are none.
func TestTemplatesAreNotRefused(t *testing.T) {
	folder(t, map[string]string{
		"tree/a.yaml": web, "tree/b.yaml": strings.Replace(web, "name: web", "name: {{ .Release.Name }}", 1),
		"tree/c.yaml": strings.Replace(denyAll, "name: deny", "name: '{{ .Values.name }}'", 1), "tree/d.yaml": strings.Replace(web, "apps/v1", "v1", 1),
	})

	o, refused, err := ReadValid([]string{"tree"}, nil, Options{})

	if err != nil || len(refused) != 1 || refused[0].Position.File != "tree/d.yaml" || len(o.Warnings) != 2 {
		t.Errorf("got %v, refused %v, warnings %q", err, refused, o.Warnings)
	}
	if _, refused, err := ReadValid([]string{"tree/a.yaml", "tree/c.yaml"}, nil, Options{}); err != nil || len(refused) != 1 {
		t.Errorf("named: got %v, refused %v", err, refused)
	}
}

// Objects that are not read are enough for some callers, but not nothing at all.
func TestOnlyOthers(t *testing.T) {
	folder(t, map[string]string{"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n", "b.yaml": ""})
	if o, err := Read([]string{"a.yaml"}, nil, Options{OnlyOthers: true}); err != nil || len(o.Skipped) != 1 {
		t.Errorf("got %v %v", o, err)
	}
	if _, err := Read([]string{"b.yaml"}, nil, Options{OnlyOthers: true}); err == nil {
		t.Error("nothing is read")
	}
}

// A file that the user names is no manifest by mistake.
func TestNamedFilesAreManifests(t *testing.T) {
	folder(t, map[string]string{"a.yaml": web, "b.yaml": "hello\n"})
	if _, err := Read([]string{"a.yaml", "b.yaml"}, nil, Options{}); err == nil || !strings.Contains(err.Error(), "b.yaml:1: \"hello\" is text") {
		t.Errorf("got %v", err)
	}
}

// Objects of a later path replace those of the same name, also policies, in whichever form the
// paths are.
func TestALaterPathReplaces(t *testing.T) {
	other := strings.Replace(web, "app: web}", "app: other}", 2)
	folder(t, map[string]string{
		"base/a.yaml": web + "---\n" + denyAll, "base/kept.yaml": strings.Replace(web, "name: web", "name: kept", 1),
		"later.yaml":           other + "---\n" + denyAll + "  policyTypes: [Egress]\n",
		"k/kustomization.yaml": "resources: [a.yaml]\n", "k/a.yaml": other,
		"around/k/kustomization.yaml": "resources: [a.yaml]\n", "around/k/a.yaml": web,
	})
	for name, tc := range map[string]struct {
		paths    []string
		label    string // of the pods of the Deployment web
		replaced []string
	}{
		"files":                     {[]string{"base", "later.yaml"}, "other", []string{"Deployment default/web", "NetworkPolicy default/deny"}},
		"the other order":           {[]string{"later.yaml", "base"}, "web", []string{"Deployment default/web", "NetworkPolicy default/deny"}},
		"a kustomization":           {[]string{"base", "k"}, "other", []string{"Deployment default/web"}},
		"an earlier kustomization":  {[]string{"k", "base"}, "web", []string{"Deployment default/web"}},
		"a kustomization in folder": {[]string{"around", "later.yaml"}, "other", []string{"Deployment default/web"}},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := Read(tc.paths, nil, Options{Strict: true})
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range o.Pods {
				if p.Name == "web" && p.Labels["app"] != tc.label {
					t.Errorf("got %v", p.Labels)
				}
			}
			if !slices.Equal(o.Replaced, tc.replaced) {
				t.Errorf("replaced %q", o.Replaced)
			}
		})
	}
}

func TestExclude(t *testing.T) {
	folder(t, map[string]string{
		"tree/a.yaml": web, "tree/test/b.yaml": denyAll, "tree/deploy/test.yaml": denyAll + "---\n" + denyAll, "tree/deploy/ha/c.yaml": "kind: Pod\n",
		"tree/deploy/k/kustomization.yaml": "resources: [no.yaml]\n",
	})
	for name, tc := range map[string]struct {
		exclude []string
		want    string // of the names, or of the error
	}{
		"names":             {[]string{"test*", "ha", "k"}, "Deployment default/web, Namespace default"},
		"paths":             {[]string{"deploy/ha", "deploy/k/"}, "Deployment default/web, Namespace default, NetworkPolicy default/deny"},
		"a pattern of path": {[]string{"deploy/*"}, "Deployment default/web, Namespace default, NetworkPolicy default/deny"},
		"a bad pattern":     {[]string{"["}, `pattern "[": syntax error in pattern`},
		"not what is named": {[]string{"tree", "deploy"}, "Deployment default/web, Namespace default, NetworkPolicy default/deny"},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := Read([]string{"tree"}, nil, Options{Strict: true, Exclude: tc.exclude})
			if err != nil && err.Error() != tc.want || err == nil && o.names() != tc.want {
				t.Errorf("got %v %v, want %s", o, err, tc.want)
			}
		})
	}
}

func TestExcludedNothing(t *testing.T) {
	folder(t, map[string]string{"tree/a.yaml": web, "tree/test/b.yaml": denyAll})

	o, err := Read([]string{"tree"}, nil, Options{Exclude: []string{"tree/test", "test", "test"}})

	if want := `Excluded nothing: no name or path in the directories matches "tree/test"`; err != nil || o.Notes()[0] != want {
		t.Errorf("got %v %q, want %s first", err, o.Notes(), want)
	}
}

// The notes have the first warnings, and how many more there are.
func TestManyWarnings(t *testing.T) {
	files := map[string]string{"tree/0.yaml": web}
	for i := range 30 {
		files["tree/a"+strings.Repeat("a", i)+".yaml"] = "hello\n"
	}
	folder(t, files)

	o, err := Read([]string{"tree"}, nil, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if notes := o.Notes(); len(o.Warnings) != 30 || notes[20] != "Warning: 10 more; --strict shows all, as errors" {
		t.Errorf("got %q", notes)
	}
}
