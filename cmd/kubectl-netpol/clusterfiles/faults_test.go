package clusterfiles

import (
	"os"
	"strings"
	"testing"
)

// An error names the file, the line, the field and the value.
func TestFaults(t *testing.T) {
	policy := func(spec string) string { return denyAll + spec }
	admin := "apiVersion: policy.networking.k8s.io/v1alpha1\nkind: AdminNetworkPolicy\nmetadata:\n  name: a\nspec:\n  priority: 1\n  subject:\n    namespaces: {}\n"
	for name, tc := range map[string]struct{ text, want string }{
		"a text":                 {"hello\n", `a.yaml:1: "hello" is text, want an object with apiVersion and kind`},
		"a long text":            {strings.Repeat("é", 50) + "\n", `a.yaml:1: "` + strings.Repeat("é", 40) + `…" is text`},
		"a number":               {"12\n", `a.yaml:1: "12" is text`},
		"a list":                 {"- a\n", "a.yaml:1: a list, want an object with apiVersion and kind; several objects are separated by lines of ---"},
		"no header":              {"a: b\n", "a.yaml:1: apiVersion and kind: missing, not an object of Kubernetes"},
		"no kind":                {"apiVersion: v1\n", "a.yaml:1: kind: missing"},
		"no apiVersion":          {"kind: NetworkPolicy\n", "a.yaml:1: apiVersion: missing"},
		"a template":             {"kind: {{ .Values.kind }}\n", "(the file has {{: of a template, only what it renders can be read)"},
		"a tab":                  {"kind:\n\ta\n", "a.yaml:2: "},
		"an unknown field":       {policy("  ingres: []\n"), `a.yaml:7: spec.ingres`},
		"in a Deployment":        {web + "  replica: 1\n", `a.yaml:9: unknown field "spec.replica"`},
		"a field twice":          {policy("  podSelector: {}\n"), `a.yaml:7: mapping key "podSelector" already defined`},
		"a wrong type":           {policy("  ingress: {}\n"), "a.yaml:7: "},
		"a wrong type elsewhere": {strings.Replace(web, "containerPort: 8080", "containerPort: http", 1), "a.yaml:8: spec.template.spec.containers.ports.containerPort: got string, want int32"},
		"a block":                {policy("  ingress:\n  - from:\n    - ipBlock: {cidr: 10.0.0.0/33}\n"), `a.yaml:9: spec.ingress[0].from[0].ipBlock.cidr: Invalid value: "10.0.0.0/33"`},
		"a port":                 {policy("  ingress:\n  - ports:\n    - {port: 80}\n    - port: 80\n      endPort: 79\n"), "a.yaml:11: spec.ingress[0].ports[1].endPort: Invalid value: 79"},
		"three policyTypes":      {policy("  policyTypes: [Ingress, Egress, Ingress]\n"), "a.yaml:7: spec.policyTypes: "},
		"a priority":             {strings.Replace(admin, "priority: 1", "priority: 1001", 1), "a.yaml:6: spec.priority: Invalid value: 1001"},
		"a name":                 {strings.Replace(denyAll, "name: deny", "name: Deny_all", 1), `a.yaml:4: metadata.name: Invalid value: "Deny_all"`},
		"a name of a Deployment": {strings.Replace(web, "name: web", "name: Web", 1), `a.yaml:3: metadata.name: "Web"`},
		"no name":                {strings.Replace(web, "{name: web}", "{}", 1), "a.yaml:3: metadata.name: missing"},
		"an address":             {"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nstatus:\n  podIP: 10.0.0.256\n", `a.yaml:5: status.podIP: `},
		"a pod range":            {"apiVersion: v1\nkind: Node\nmetadata: {name: a}\nspec:\n  podCIDR: here\n", `a.yaml:5: spec.podCIDR: `},
		"a namespaced Node":      {"apiVersion: v1\nkind: Node\nmetadata:\n  name: a\n  namespace: b\n", "a.yaml:5: metadata.namespace: not for a Node"},
		"an item of a list":      {"apiVersion: networking.k8s.io/v1\nkind: NetworkPolicyList\nitems:\n- metadata: {name: a}\n  spec: {podSelector: {}, order: 1}\n", "a.yaml:5: spec.order"},
		"a list of no items":     {"apiVersion: v1\nkind: List\nitems: 1\n", "a.yaml:3: items is not a list"},
		"nothing":                {"", "no object to read: no manifests found"},
		"only others":            {"apiVersion: v1\nkind: Secret\n---\napiVersion: v1\nkind: Secret\n", "no object to read: only 2 Secret"},
	} {
		t.Run(name, func(t *testing.T) {
			folder(t, map[string]string{"a.yaml": tc.text})
			if _, err := Read([]string{"a.yaml"}, nil, Options{Strict: true}); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v\nwant %s", err, tc.want)
			}
		})
	}
}

// All faults are reported, not only the first.
func TestAllFaultsAreReported(t *testing.T) {
	folder(t, map[string]string{
		"a.yaml": denyAll + "  ingres: []\n---\n" + denyAll + "  egres: []\n",
		"b.yaml": "kind: Pod\n",
	})
	_, err := Read([]string{"a.yaml", "b.yaml", "missing.yaml"}, nil, Options{})
	for _, want := range []string{"a.yaml:7: spec.ingres", "a.yaml:15: spec.egres", "b.yaml:1: apiVersion: missing", "missing.yaml: no such file"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v\nwant %s", err, want)
		}
	}
}

func TestPathsThatCannotBeRead(t *testing.T) {
	folder(t, map[string]string{"chart/Chart.yaml": "apiVersion: v2\n", "loop/a.yaml": denyAll, "links/README": ""})
	if err := os.Symlink(".", "loop/again"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere.yaml", "links/a.yaml"); err != nil {
		t.Fatal(err)
	}
	if o, err := Read([]string{"loop"}, nil, Options{}); err != nil || len(o.Policies) != 1 {
		t.Errorf("a link that leads back: %v", err)
	}
	for path, want := range map[string]string{
		"links": "links/a.yaml: no such file",
		"chart": "chart chart: ",
	} {
		t.Run(path, func(t *testing.T) {
			if _, err := Read([]string{path}, nil, Options{}); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v\nwant %s", err, want)
			}
		})
	}
}

// A document without a kind keeps nothing else from being read unless it may be a policy.
func TestObjectsWithoutKind(t *testing.T) {
	const pod = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c}]}\n"
	for text, refused := range map[string]bool{
		"apiVersion: v1\nmetadata: {name: x}\n":                       false,
		"metadata: {name: x}\nspec: {replicas: 1}\n":                  false,
		"apiVersion: cert-manager.io/v1\nspec: {subject: {ou: x}}\n":  false,
		"apiVersion: networking.k8s.io/v1\nspec: {podSelector: {}}\n": true,
		"metadata: {name: x}\nspec: {policyTypes: [Ingress]}\n":       true,
		"spec: {subject: {namespaces: {}}}\n":                         true,
		"kind: NetworkPolicy\nmetadata: {name: x}\n":                  true,
	} {
		o, err := Read([]string{Stdin}, strings.NewReader(text+pod), Options{})
		switch {
		case (err != nil) != refused:
			t.Errorf("%q: got %v", text, err)
		case !refused && (len(o.Pods) != 1 || len(o.Warnings) != 1):
			t.Errorf("%q: got %d pods and %q", text, len(o.Pods), o.Warnings)
		}
	}
}
