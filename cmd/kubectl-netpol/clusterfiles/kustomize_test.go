package clusterfiles

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
)

// layers are a typical application: a base, a component and two overlays.
func layers() map[string]string {
	return map[string]string{
		"deploy/base/kustomization.yaml": "resources: [web.yaml, policies]\n",
		"deploy/base/web.yaml":           web,
		"deploy/base/policies/kustomization.yml": "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n" +
			"resources:\n- policies.yaml\n",
		"deploy/base/policies/policies.yaml": "# for all pods\n" + denyAll + "---\n" + strings.Replace(denyAll, "name: deny", "name: allow", 1) + "  ingress:\n  - ports: [{port: 80}]\n",
		"deploy/base/patch.yaml":             "this: is no manifest\n",
		"deploy/component/kustomization.yaml": "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\n" +
			"patches:\n- target: {kind: NetworkPolicy, name: allow}\n  patch: '[{\"op\": \"replace\", \"path\": \"/spec/ingress/0/ports/0/port\", \"value\": 8080}]'\n",
		"deploy/overlays/prod/Kustomization":      "namespace: prod\nnamePrefix: big-\nresources: [../../base]\ncomponents: [../../component]\ncommonAnnotations: {home: https://example.com}\n",
		"deploy/overlays/test/kustomization.yaml": "namespace: test\nresources: [../../base]\nbuildMetadata: [managedByLabel]\n",
		"deploy/README.md":                        "No YAML: {{\n",
	}
}

func TestKustomizationsAreBuilt(t *testing.T) {
	folder(t, layers())
	const (
		prod = "Deployment prod/big-web, Namespace prod, NetworkPolicy prod/big-allow, NetworkPolicy prod/big-deny"
		test = "Deployment test/web, Namespace test, NetworkPolicy test/allow, NetworkPolicy test/deny"
		base = "Deployment default/web, Namespace default, NetworkPolicy default/allow, NetworkPolicy default/deny"
	)
	for name, tc := range map[string]struct {
		paths []string
		want  string
	}{
		"an overlay":             {[]string{"deploy/overlays/prod"}, prod},
		"its file":               {[]string{"deploy/overlays/prod/Kustomization"}, prod},
		"it and its file":        {[]string{"deploy/overlays/test/", "deploy/overlays/test/kustomization.yaml"}, test},
		"the base":               {[]string{"deploy/base"}, base},
		"the folder around them": {[]string{"deploy"}, "Deployment prod/big-web, Deployment test/web, Namespace prod, Namespace test, NetworkPolicy prod/big-allow, NetworkPolicy prod/big-deny, NetworkPolicy test/allow, NetworkPolicy test/deny"},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := Read(tc.paths, nil, Options{})
			if err != nil || o.names() != tc.want {
				t.Fatalf("got %v %v, want %s", err, o, tc.want)
			}
		})
	}
}

// The position of a built object is in the file that it was built from.
func TestPositionsInKustomizations(t *testing.T) {
	folder(t, layers())
	o, err := Read([]string{"deploy/overlays/prod"}, nil, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ kind, name, field, want string }{
		{"NetworkPolicy", "big-deny", "", "deploy/base/policies/policies.yaml:2"},
		{"NetworkPolicy", "big-deny", "spec.podSelector", "deploy/base/policies/policies.yaml:7"},
		{"NetworkPolicy", "big-allow", "spec.ingress[0].ports[0]", "deploy/base/policies/policies.yaml:16"},
		{"Deployment", "big-web", "spec.selector", "deploy/base/web.yaml:5"},
		{"Pod", "big-web", "metadata.labels", "deploy/base/web.yaml:7"},
	} {
		t.Run(tc.name+"_"+tc.field, func(t *testing.T) {
			if got, ok := o.Position(tc.kind, "prod", tc.name, tc.field); !ok || got.String() != tc.want {
				t.Errorf("%s %s %s: got %v, want %s", tc.kind, tc.name, tc.field, got, tc.want)
			}
		})
	}
	for _, p := range o.Policies {
		p := p.(*networkingv1.NetworkPolicy)
		if p.Name == "big-allow" && p.Spec.Ingress[0].Ports[0].Port.IntVal != 8080 {
			t.Errorf("the component's patch is missing: %+v", p.Spec)
		}
		if len(p.Annotations) != 1 {
			t.Errorf("annotations %v", p.Annotations)
		}
	}

	if got := o.Comments("NetworkPolicy", "prod", "big-deny"); len(got) != 1 || got[0].Text != "for all pods" || got[0].Position.Line != 1 {
		t.Errorf("comments %v", got)
	}
}

// An inline patch is not a path, even if its text looks like one.
func TestInlinePatches(t *testing.T) {
	files := layers()
	files["deploy/overlays/prod/Kustomization"] = "resources: [../../base]\npatchesStrategicMerge:\n- |\n  kind: Deployment\n  metadata:\n    name: web\n    annotations: {by: me@example.com, see: 'https://example.com'}\n  apiVersion: apps/v1\n"
	folder(t, files)
	o, err := Read([]string{"deploy/overlays/prod"}, nil, Options{})
	if err != nil || len(o.Pods) != 1 {
		t.Errorf("got %v %v", o, err)
	}
}

func TestFaultsInKustomizations(t *testing.T) {
	for name, tc := range map[string]struct{ file, text, want string }{
		"a policy that no server takes": {"base/policies/policies.yaml", denyAll + "  ingress:\n  - ports: [{port: 0}]\n", "deploy/base/policies/policies.yaml:8: spec.ingress[0].ports[0].port"},
		"an unknown kind":               {"base/policies/policies.yaml", strings.Replace(denyAll, "NetworkPolicy", "NetworkPolicie", 1), `deploy/base/policies/policies.yaml:2: kind: "NetworkPolicie"`},
		"a resource of another host":    {"base/kustomization.yaml", "resources: [https://example.com/base.yaml]\n", `deploy/base/kustomization.yaml:1: resources: "https://example.com/base.yaml" is not a local path`},
		"a repository":                  {"base/kustomization.yaml", "resources: ['github.com/example/base?ref=v1']\n", "is not a local path"},
		"a repository by SSH":           {"base/kustomization.yaml", "bases: ['git@example.com:base']\n", "is not a local path"},
		"in another case":               {"base/kustomization.yaml", "RESOURCES: ['HTTPS://example.com/a']\n", "is not a local path"},
		"a patch of another host":       {"overlays/prod/Kustomization", "resources: [../../base]\npatches: [{path: 'http://example.com/p.yaml'}]\n", `deploy/overlays/prod/Kustomization:2: patches: "http://example.com/p.yaml" is not a local path`},
		"an old patch of another host":  {"overlays/prod/Kustomization", "resources: [../../base]\npatchesStrategicMerge: ['https://example.com/p.yaml']\n", "patchesStrategicMerge:"},
		"a value of another host":       {"overlays/prod/Kustomization", "resources: [../../base]\nconfigMapGenerator: [{name: a, files: ['a=https://example.com/p']}]\n", "configMapGenerator:"},
		"a chart":                       {"base/kustomization.yaml", "helmCharts: [{name: a, repo: 'https://example.com'}]\n", "helmCharts: only local files are read"},
		"a plugin":                      {"base/kustomization.yaml", "generators: [a.yaml]\n", "generators: only local files are read, and no programs are started"},
		"several that are refused":      {"base/kustomization.yaml", "validators: [c.yaml]\ntransformers: [b.yaml]\ngenerators: [a.yaml]\nhelmCharts: [{name: a}]\n", "deploy/base/kustomization.yaml:4: helmCharts: "},
		"a missing file":                {"base/kustomization.yaml", "resources: [no.yaml]\n", "no.yaml"},
		"an unknown field":              {"base/kustomization.yaml", "resource: [web.yaml]\n", `unknown field "resource"`},
		"an empty file":                 {"overlays/prod/Kustomization", "", "kustomization.yaml is empty"},
		"text":                          {"overlays/prod/Kustomization", "hello\n", "deploy/overlays/prod/Kustomization: "},
		"a cycle":                       {"base/kustomization.yaml", "resources: [../overlays/prod]\n", "cycle"},
	} {
		t.Run(name, func(t *testing.T) {
			files := layers()
			files["deploy/"+tc.file] = tc.text
			folder(t, files)
			_, err := Read([]string{"deploy/overlays/prod"}, nil, Options{})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
}

// What no kustomization has is named once for each folder, whichever path the folder is below.
func TestPoliciesInNoKustomization(t *testing.T) {
	const component = "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\n"
	files := map[string]string{
		"k/kustomization.yaml":                 "resources: [base]\n",
		"k/base/kustomization.yaml":            "resources: [web.yaml]\npatches: [{path: patch.yaml}]\n",
		"k/base/web.yaml":                      web + "---\n" + denyAll,
		"k/base/patch.yaml":                    denyAll,
		"k/base/old.yaml":                      web,
		"k/base/more/a.yaml":                   "# forgotten\n" + denyAll,
		"k/base/more/b.yaml":                   denyAll,
		"k/base/.hidden.yaml":                  denyAll,
		"k/base/chart/Chart.yaml":              "apiVersion: v2\nname: web\n",
		"k/base/chart/templates/policy.yaml":   denyAll,
		"k/components/np/kustomization.yaml":   component + "resources: [deny.yaml, more/more.yaml]\n",
		"k/components/np/deny.yaml":            denyAll,
		"k/components/np/more/more.yaml":       denyAll,
		"k/components/label/kustomization.yml": component + "commonLabels: {a: b}\n",
		"k/overlays/prod/kustomization.yaml":   "resources: [../../base, policy.yaml]\n",
		"k/overlays/prod/policy.yaml":          denyAll,
	}
	folder(t, files)
	want := []string{
		"k/base/more/a.yaml:3: no kustomization that was built has this file, nor 1 other file of policies in its folder: passed over",
		"k/components/np/deny.yaml:2: no kustomization that was built has this file of policies: passed over",
		"k/components/np/more/more.yaml:2: no kustomization that was built has this file of policies: passed over",
		"k/overlays/prod/policy.yaml:2: no kustomization that was built has this file of policies: passed over",
	}
	for _, path := range []string{"k", "."} {
		o, err := Read([]string{path}, nil, Options{})
		if err != nil || !slices.Equal(o.Warnings, want) {
			t.Errorf("-f %s: got %v %q", path, err, o.Warnings)
		}
	}
	o, err := Read([]string{"k"}, nil, Options{Exclude: []string{"overlays", "components/np", "more"}})
	if err != nil || len(o.Warnings)+len(o.Unmatched) != 0 {
		t.Errorf("with exclusions: got %v %q %q", err, o.Warnings, o.Unmatched)
	}

	files["k/kustomization.yaml"] = "resources: [base]\ncomponents: [components/np]\n"
	folder(t, files)
	if o, err := Read([]string{"k"}, nil, Options{}); err == nil || !strings.Contains(err.Error(), "already registered") {
		t.Errorf("two policies of one name: got %v %v", o, err)
	}
}

func TestAFaultOfABaseIsSaidOnce(t *testing.T) {
	for name, tc := range map[string]struct{ web, policy, want string }{
		"an error":  {web, denyAll + "  ingress: [{ports: [{port: 0}]}]\n", "base/policy.yaml:7: spec.ingress[0].ports[0].port"},
		"a warning": {web + "  unknown: true\n", denyAll, `base/web.yaml:1: `},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{"k/base/kustomization.yaml": "resources: [web.yaml, policy.yaml]\n", "k/base/web.yaml": tc.web, "k/base/policy.yaml": tc.policy}
			for _, overlay := range []string{"a", "b"} {
				files["k/"+overlay+"/kustomization.yaml"] = "resources: [../base]\nnamespace: " + overlay + "\n"
			}
			folder(t, files)
			o, err := Read([]string{"k"}, nil, Options{})
			said := fmt.Sprint(err)
			if err == nil {
				said = strings.Join(o.Warnings, "\n")
			}
			if strings.Count(said, "k/"+tc.want) != 1 || strings.Contains(said, "\n") {
				t.Errorf("got %s", said)
			}
		})
	}
}

func TestPlurals(t *testing.T) {
	for what, want := range map[string]string{
		"ConfigMap": "2 ConfigMaps", "NetworkPolicy (projectcalico.org)": "2 NetworkPolicies (projectcalico.org)", "Ingress": "2 Ingresses",
		"Gateway": "2 Gateways", "Endpoints": "2 Endpoints", "Patch": "2 Patches", "file without apiVersion and kind": "2 files without apiVersion and kind",
		"Helm chart (--helm renders one)": "2 Helm charts (--helm renders one)",
	} {
		if got := (Skipped{what, 2}).String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if got := (Skipped{what, 1}).String(); got != "1 "+what {
			t.Errorf("got %s, want 1 %s", got, what)
		}
	}
}

// What is remote is left out of the kustomizations that refer to it, and named once.
func TestRemoteResourcesAreLeftOut(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a/kustomization.yaml":    "resources: [pod.yaml]\n",
		"a/pod.yaml":              "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c}]}}\n",
		"b/kustomization.yaml":    "namespace: b\nResources: ['https://example.com/base?ref=v1', ../a]\n",
		"root/kustomization.yaml": "resources: [../a, ../b]\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{filepath.Join(dir, "root"), dir} {
		o, err := Read([]string{path}, nil, Options{})
		if err != nil || len(o.Pods) != 2 || len(o.Warnings) != 1 || !strings.Contains(o.Warnings[0], `resources: "https://example.com/base?ref=v1" is not a local path`) || !strings.HasSuffix(o.Warnings[0], ": left out") {
			t.Errorf("%s: got %+v, %v", path, o, err)
		}
		if _, err := Read([]string{path}, nil, Options{Strict: true}); err == nil || !strings.Contains(err.Error(), "is not a local path") {
			t.Errorf("%s: strict: got %v", path, err)
		}
	}
}
