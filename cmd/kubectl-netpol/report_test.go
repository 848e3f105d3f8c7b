package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/lint"
)

// aReport has values that each format has to escape.
func aReport() *report {
	return &report{
		Policies: 2,
		Findings: []finding{
			{File: "a b/x,y:z.yaml", Line: 7, Finding: lint.Finding{
				Rule: "dead-direction", Severity: lint.Error, Object: lint.Object{Kind: "NetworkPolicy", Namespace: "shop", Name: "db"},
				Field: "spec.egress", Message: "100% dead,\nwhatever it says", Why: "Because.", Fix: "Add Egress.",
			}},
			{Finding: lint.Finding{
				Rule: "except-reopened", Severity: lint.Warning, Object: lint.Object{Kind: "AdminNetworkPolicy", Name: "closed"},
				Message: "there is none", Why: "No effect.", Fix: "Add rules.",
			}},
			{File: "/abs/x.yaml", Finding: lint.Finding{
				Rule: "except-reopened", Severity: lint.Info, Object: lint.Object{Kind: "AdminNetworkPolicy", Name: "other"},
				Message: "there is none", Why: "No effect.", Fix: "Add rules.",
			}},
		},
		Ignored: []finding{{File: "-", Line: 3, Reason: "the job is created at night", Finding: lint.Finding{
			Rule: "peer-selects-none", Severity: lint.Warning, Object: lint.Object{Kind: "NetworkPolicy", Namespace: "shop", Name: "db"}, Message: "none",
		}}},
	}
}

func written(t *testing.T, form string) string {
	t.Helper()
	var b strings.Builder
	if err := (&checkOptions{options: &options{}, output: form}).write(&b, aReport()); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestReportAsText(t *testing.T) {
	const want = `a b/x,y:z.yaml:7: error: NetworkPolicy shop/db spec.egress: 100% dead,
whatever it says [dead-direction]
    Because.
    Fix: Add Egress.
warning: AdminNetworkPolicy closed: there is none [except-reopened]
    No effect.
    Fix: Add rules.
/abs/x.yaml: info: AdminNetworkPolicy other: there is none [except-reopened]
    Fix: Add rules.
3 findings in 2 policies: 1 error, 1 warning, 1 info, 1 ignored
`
	if got := written(t, "text"); got != want {
		t.Errorf("got\n%s", got)
	}
}

// Each finding is one command on one line, whatever text it contains.
func TestReportForGitHub(t *testing.T) {
	const want = `::error file=a b/x%2Cy%3Az.yaml,line=7,title=dead-direction::NetworkPolicy shop/db spec.egress: 100%25 dead,%0Awhatever it says%0ABecause.%0AFix: Add Egress.
::warning title=except-reopened::AdminNetworkPolicy closed: there is none%0ANo effect.%0AFix: Add rules.
::notice file=/abs/x.yaml,title=except-reopened::AdminNetworkPolicy other: there is none%0ANo effect.%0AFix: Add rules.
`
	if got := written(t, "github"); got != want {
		t.Errorf("got\n%s", got)
	}
}

// The document has the elements that the schema of SARIF 2.1.0 requires, with valid values.
func TestReportAsSARIF(t *testing.T) {
	var log struct {
		Schema  string `json:"$schema"`
		Version string
		Runs    []struct {
			ColumnKind string
			Tool       struct {
				Driver struct {
					Name  string
					Rules []struct {
						ID                     string
						ShortDescription, Help struct{ Text string }
						DefaultConfiguration   struct{ Level string }
					}
				}
			}
			Results []struct {
				RuleID    string
				RuleIndex int
				Level     string
				Message   struct{ Text string }
				Locations []struct {
					PhysicalLocation *struct {
						ArtifactLocation struct{ URI string }
						Region           *struct{ StartLine int }
					}
					LogicalLocations []struct{ FullyQualifiedName string }
				}
				Suppressions []struct{ Kind, Justification string }
			}
		}
	}
	d := json.NewDecoder(strings.NewReader(written(t, "sarif")))
	if err := d.Decode(&log); err != nil {
		t.Fatal(err)
	}
	if log.Version != "2.1.0" || !strings.HasSuffix(log.Schema, "sarif-2.1.0.json") || len(log.Runs) != 1 || log.Runs[0].Tool.Driver.Name == "" || log.Runs[0].ColumnKind != "utf16CodeUnits" {
		t.Fatalf("got %+v", log)
	}
	levels := []string{"none", "note", "warning", "error"}
	rules := log.Runs[0].Tool.Driver.Rules
	if len(rules) != len(lint.Rules) {
		t.Errorf("%d rules, want %d", len(rules), len(lint.Rules))
	}
	for _, r := range rules {
		if r.ID == "" || r.ShortDescription.Text == "" || !slices.Contains(levels, r.DefaultConfiguration.Level) || !strings.HasSuffix(r.Help.Text, "(docs/lints.md#"+r.ID+")") {
			t.Errorf("rule %+v", r)
		}
	}
	var uris []string
	for _, r := range log.Runs[0].Results {
		if r.RuleIndex >= len(rules) || rules[r.RuleIndex].ID != r.RuleID || !slices.Contains(levels, r.Level) || r.Message.Text == "" || len(r.Locations) != 1 || r.Locations[0].LogicalLocations[0].FullyQualifiedName == "" {
			t.Errorf("result %+v", r)
		}
		uri := ""
		if p := r.Locations[0].PhysicalLocation; p != nil {
			uri = p.ArtifactLocation.URI
			if _, err := url.Parse(uri); err != nil || p.Region != nil && p.Region.StartLine < 1 {
				t.Errorf("location %+v: %v", p, err)
			}
		}
		uris = append(uris, uri)
		for _, s := range r.Suppressions {
			if s.Kind != "inSource" || s.Justification != "the job is created at night" {
				t.Errorf("suppression %+v", s)
			}
		}
	}

	if want := []string{"a%20b/x,y:z.yaml", "", "file:///abs/x.yaml", ""}; !slices.Equal(uris, want) {
		t.Errorf("got %q, want %q", uris, want)
	}
}

func TestReportAsJSON(t *testing.T) {
	var got struct {
		Policies          int
		Findings, Ignored []map[string]any
	}
	if err := json.Unmarshal([]byte(written(t, "json")), &got); err != nil {
		t.Fatal(err)
	}
	f := got.Findings[0]
	if got.Policies != 2 || len(got.Findings) != 3 || f["severity"] != "error" || f["file"] != "a b/x,y:z.yaml" || f["line"] != 7.0 || f["namespace"] != "shop" || f["fix"] != "Add Egress." || got.Ignored[0]["reason"] == "" {
		t.Errorf("got %+v", got)
	}
}

// A comment ignores the findings of its rule on its own line, on the line below, or about
// the object that follows it. "A" and "B" are the lines of two findings of one rule.
func TestIgnoredFindings(t *testing.T) {
	const manifest = `# first
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: shop, name: db}
spec:
  podSelector: {}
  ingress:
  - from:
    # third
    # fourth
    - ipBlock: {cidr: 10.0.0.1/8} # second
    - ipBlock: {cidr: 10.0.0.2/8}
`
	const ignore = "netpol:ignore cidr-form it is so"
	for _, tc := range []struct {
		name    string
		at      string // the comment to replace
		comment string
		flags   string
		want    []string // remaining rules and lines
		ignored int
	}{
		{name: "no such comment", at: "first", comment: "other", want: []string{"cidr-form 11", "cidr-form 12"}},
		{name: "on the line", at: "second", comment: ignore, want: []string{"cidr-form 12"}, ignored: 1},
		{name: "above the line", at: "fourth", comment: ignore, want: []string{"cidr-form 12"}, ignored: 1},
		{name: "above other comments", at: "third", comment: ignore, want: []string{"cidr-form 12"}, ignored: 1},
		{name: "above the object", at: "first", comment: ignore, ignored: 2},
		{name: "without a reason", at: "first", comment: "netpol:ignore cidr-form", want: []string{"ignore-comment 1", "cidr-form 11", "cidr-form 12"}},
		{name: "without a rule", at: "first", comment: "netpol:ignore", want: []string{"ignore-comment 1", "cidr-form 11", "cidr-form 12"}},
		{name: "an unknown rule", at: "first", comment: "netpol:ignore cidr-from it is so", want: []string{"ignore-comment 1", "cidr-form 11", "cidr-form 12"}},
		{name: "another rule", at: "second", comment: "netpol:ignore no-dns it is so", want: []string{"ignore-comment 11", "cidr-form 11", "cidr-form 12"}},
		{name: "another comment", at: "second", comment: "see netpol:ignore cidr-form", want: []string{"cidr-form 11", "cidr-form 12"}},
		{name: "a longer word", at: "second", comment: "netpol:ignored cidr-form so", want: []string{"cidr-form 11", "cidr-form 12"}},
		{name: "a disabled rule", at: "second", comment: ignore, flags: " --disable cidr-form"},
		{name: "annotation", at: "name: db", comment: "name: db, annotations: {" + lint.IgnoreAnnotation + "cidr-form: it is so}", ignored: 2},
		{name: "annotation without a reason", at: "name: db", comment: "name: db, annotations: {" + lint.IgnoreAnnotation + "cidr-form: ''}",
			want: []string{"ignore-comment 4", "cidr-form 11", "cidr-form 12"}},
		{name: "ignore-comment is disabled", at: "first", comment: "netpol:ignore", flags: " --disable ignore-comment", want: []string{"cidr-form 11", "cidr-form 12"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, stdout, stderr := call(t, strings.Replace(manifest, tc.at, tc.comment, 1), "check -f - -o json"+tc.flags)
			var r report
			if err := json.Unmarshal([]byte(stdout), &r); err != nil {
				t.Fatal(err, stderr)
			}
			var got []string
			for _, f := range r.Findings {
				got = append(got, fmt.Sprint(f.Rule, " ", f.Line))
			}

			if !slices.Equal(got, tc.want) || len(r.Ignored) != tc.ignored {
				t.Errorf("got %q and %d ignored, want %q and %d", got, len(r.Ignored), tc.want, tc.ignored)
			}
		})
	}
}

// The examples in docs/lints.md as files: the bad one has findings only of its rule, all
// with a line, and the good one has none.
func TestExamplesOfRules(t *testing.T) {
	t.Chdir("lint/testdata")
	check := func(t *testing.T, example string) *report {
		t.Helper()
		_, stdout, stderr := call(t, "", "check -o json -f cluster.yaml -f "+example)
		r := &report{}
		if err := json.Unmarshal([]byte(stdout), r); err != nil {
			t.Fatalf("%s: %v\n%s", example, err, stderr)
		}
		return r
	}
	for _, rule := range lint.Rules {
		t.Run(rule.ID, func(t *testing.T) {
			bad := check(t, rule.ID+"/bad.yaml")
			for _, f := range bad.Findings {
				if f.Rule != rule.ID && rule.ID != lint.IgnoreComment || (f.File != rule.ID+"/bad.yaml" || f.Line == 0) && f.Kind != "Namespace" {
					t.Errorf("%+v", f)
				}
			}
			if !slices.ContainsFunc(bad.Findings, func(f finding) bool { return f.Rule == rule.ID }) {
				t.Errorf("no finding in bad.yaml")
			}
			for _, f := range check(t, rule.ID+"/good.yaml").Findings {
				t.Errorf("in good.yaml: %+v", f)
			}
		})
	}
}

func TestCheckFlags(t *testing.T) {
	t.Chdir("lint/testdata")
	for _, tc := range []struct {
		args   string
		code   int
		stdout string
		stderr string
	}{
		{args: "-f cluster.yaml -f no-dns/bad.yaml", code: 1, stdout: "[no-dns]"},
		{args: "-f cluster.yaml -f no-dns/bad.yaml --fail-on error", code: 0, stdout: "[no-dns]"},
		{args: "-f cluster.yaml -f no-dns/bad.yaml --disable no-dns,named-port", code: 0, stdout: "0 findings in 3 policies\n"},
		{args: "-f cluster.yaml -f no-dns/bad.yaml -n monitoring", code: 0, stdout: "0 findings in 1 policy\n"},
		{args: "-f cluster.yaml -f no-dns/bad.yaml -n shop", code: 1, stdout: "[no-dns]"},
		{args: "-f cluster.yaml -f shadowed/bad.yaml", code: 0, stdout: "[shadowed]"},
		{args: "-f cluster.yaml -f shadowed/bad.yaml --fail-on info", code: 1, stdout: "[shadowed]"},
		{args: "-f cluster.yaml -f dead-direction/bad.yaml --fail-on none", code: 0, stdout: "[dead-direction]"},
		{args: "-f cluster.yaml -f dead-direction/bad.yaml --fail-on error", code: 1, stdout: "[dead-direction]"},
		{args: "-f cluster.yaml -f host-network-peer/good.yaml --service-cidr 192.168.0.0/16", code: 1, stdout: "[service-address]"},
		{args: "-f cluster.yaml -f dead-direction/bad.yaml -o github", code: 1, stdout: "::error file=dead-direction/bad.yaml,line=9,title=dead-direction::NetworkPolicy shop/api spec.egress"},
		{args: "-f cluster.yaml -f dead-direction/bad.yaml -o sarif", code: 1, stdout: `"uri": "dead-direction/bad.yaml"`},
		{args: "--rules", code: 0, stdout: "no-dns"},
		{args: "-f cluster.yaml --fail-on fatal", code: 2, stderr: "--fail-on=fatal: must be error, warning, info or none"},
		{args: "-f cluster.yaml --disable no-dn", code: 2, stderr: "--disable=no-dn: there is no such rule"},
		{args: "-f cluster.yaml --service-cidr 10.0.0.0", code: 2, stderr: "--service-cidr=10.0.0.0: must be a CIDR"},
		{args: "-f cluster.yaml -o xml", code: 2, stderr: "--output=xml"},
	} {
		t.Run(tc.args, func(t *testing.T) {
			code, stdout, stderr := call(t, "", "check "+tc.args)
			if code != tc.code || !strings.Contains(stdout, tc.stdout) || !strings.Contains(stderr, tc.stderr) {
				t.Errorf("got %d\n%s%s", code, stdout, stderr)
			}
		})
	}
	namespace := "apiVersion: v1\nkind: Namespace\nmetadata: {name: x}\n"
	if code, stdout, stderr := call(t, namespace, "check -f -"); code != 2 || stdout != "" || !strings.Contains(stderr, "there is neither a policy nor a pod to check") {
		t.Errorf("without policies: got %d\n%s%s", code, stdout, stderr)
	}
}

// What API servers refuse is a finding in every form, beside those of the other policies.
func TestRefusedPoliciesAreFindings(t *testing.T) {
	const text = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: shop, name: refused}
spec:
  podSelector: {}
  ingress:
  - ports: [{port: 70000}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: shop, name: dead}
spec:
  podSelector: {}
  policyTypes: [Ingress]
  egress: [{}]
---
apiVersion: networking.k8s.io/v1beta1
kind: NetworkPolicy
metadata: {namespace: shop, name: old}
spec: {podSelector: {}}
---
apiVersion: app/v1
kind: Deployment
metadata: {namespace: shop, name: web}
`
	const port = "spec.ingress[0].ports[0].port"
	t.Chdir(t.TempDir())
	if err := os.WriteFile("a.yaml", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for output, want := range map[string][]string{
		"text":   {"a.yaml:7: error: NetworkPolicy shop/refused " + port + ": Invalid value: 70000: ", "a.yaml:15: error: NetworkPolicy shop/dead spec.egress: ", `a.yaml:17: error: NetworkPolicy shop/old: apiVersion: NetworkPolicy of "networking.k8s.io/v1beta1" is not read, only of "networking.k8s.io/v1"`, `a.yaml:22: error: Deployment shop/web: apiVersion: Deployment of "app/v1" is not known; did you mean "apps/v1"?`},
		"json":   {`"line": 7`, `"line": 15`, `"line": 17`, `"line": 22`, `"field": "` + port},
		"sarif":  {`"startLine": 7`, `"startLine": 15`, `"startLine": 17`, `"ruleId": "refused"`, `"ruleId": "dead-direction"`},
		"github": {"::error file=a.yaml,line=7,title=refused::", "::error file=a.yaml,line=15,title=dead-direction::", "line=17,", "line=22,"},
		"junit":  {"[refused]", "[dead-direction]", `failure message="a.yaml:7: `, `failure message="a.yaml:22: `},
	} {
		code, stdout, stderr := call(t, "", "check -f a.yaml -o "+output)
		for _, want := range want {
			if !strings.Contains(stdout, want) {
				t.Errorf("%s: no %s in\n%s%s", output, want, stdout, stderr)
			}
		}
		if code != exitNo {
			t.Errorf("%s: got %d", output, code)
		}
	}
	if code, stdout, _ := call(t, text[:strings.Index(text, "---")], "check -f - -o sarif"); code != exitNo || !strings.Contains(stdout, `"refused"`) {
		t.Errorf("a refused policy alone: got %d\n%s", code, stdout)
	}
	if code, _, stderr := call(t, "", "matrix -f a.yaml"); code != exitError || !strings.Contains(stderr, "a.yaml:17: apiVersion: ") {
		t.Errorf("matrix: got %d\n%s", code, stderr)
	}
	if code, stdout, _ := call(t, "", "check -f a.yaml -n other -o json"); code != exitError {
		t.Errorf("another namespace: got %d\n%s", code, stdout)
	}
	for command, want := range map[string]string{
		"check -f a.yaml":         " in 3 policies, 2 refused: ",
		"check -f a.yaml -n shop": " in 3 policies, 2 refused: ",
		"check -f a.yaml -o json": "\"policies\": 3,\n  \"refused\": 2,\n",
	} {
		if _, stdout, _ := call(t, "", command); !strings.Contains(stdout, want) {
			t.Errorf("%s: got\n%s", command, stdout)
		}
	}
}

// Operators create pods: beside their resources, only what is nearly right is a finding.
func TestPodsOfOperators(t *testing.T) {
	policy := func(subject, peer string) string {
		return "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {namespace: default, name: p}\nspec:\n  podSelector: {matchLabels: {app: " + subject + "}}\n" +
			"  ingress: [{from: [{podSelector: {matchLabels: {app: " + peer + "}}}]}]\n---\n"
	}
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: grafana, labels: {app: grafana}}\n---\n"
	const custom = "apiVersion: monitoring.coreos.com/v1\nkind: Prometheus\nmetadata: {name: a}\n---\n"
	for name, tc := range map[string]struct{ text, want, not string }{
		"without an operator":   {pod + policy("prometheus", "grafana"), "[selects-no-pod]", ""},
		"with its resources":    {pod + custom + policy("prometheus", "grafana"), "0 findings", "selects-no-pod"},
		"a peer":                {pod + custom + policy("grafana", "prometheus"), "0 findings", "peer-selects-none"},
		"a typo":                {pod + custom + policy("grafna", "grafana"), "app=grafna matches no pod", ""},
		"in another namespace":  {pod + custom + strings.Replace(policy("prometheus", "grafana"), "namespace: default", "namespace: x", 1), "0 findings", ""},
		"resources of built-in": {pod + "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: a}\n---\n" + policy("prometheus", "grafana"), "[selects-no-pod]", ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, stdout, stderr := call(t, tc.text, "check -f - --disable no-default-deny")
			if !strings.Contains(stdout, tc.want) || tc.not != "" && strings.Contains(stdout, tc.not) {
				t.Errorf("got\n%s%s", stdout, stderr)
			}
			if strings.Contains(stdout, "stay open") && !strings.Contains(stdout, "unless a controller creates them") {
				t.Errorf("got\n%s", stdout)
			}
		})
	}
}

// Overlays have the faults of their base, at the same lines.
func TestAFaultOfABaseIsOneFinding(t *testing.T) {
	t.Chdir(t.TempDir())
	files := map[string]string{
		"base/kustomization.yaml": "resources: [policies.yaml]\n",
		"base/policies.yaml": policyOf("refused", "  ingress: [{ports: [{port: 70000}]}]") +
			policyOf("dead", "  policyTypes: [Ingress]\n  egress: [{}]") + policyOf("none", "  podSelector: {matchLabels: {app: gone}}"),
	}
	for _, overlay := range []string{"east", "north", "west"} {
		files[overlay+"/kustomization.yaml"] = "resources: [../base]\nnamespace: " + overlay + "\n"
	}
	for name, text := range files {
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	_, stdout, stderr := call(t, "", "check -f .")
	for _, want := range []string{"NetworkPolicy east/refused (also in north, west) spec.ingress", "NetworkPolicy east/dead (also in north, west) spec.egress", " in 9 policies, 3 refused: "} {
		if strings.Count(stdout, want) != 1 {
			t.Errorf("%q is not there once in\n%s%s", want, stdout, stderr)
		}
	}
	if n := strings.Count(stdout, "[refused]"); n != 1 || strings.Contains(stdout, "north/") {
		t.Errorf("said again:\n%s", stdout)
	}
	if _, stdout, _ := call(t, "", "check -f . -o json"); strings.Count(stdout, `"name": "dead"`) != 3 {
		t.Errorf("JSON has not each object\n%s", stdout)
	}
}

func policyOf(name, spec string) string {
	if !strings.Contains(spec, "podSelector") {
		spec = "  podSelector: {}\n" + spec
	}
	return "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: " + name + "}\nspec:\n" + spec + "\n"
}
