package main

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/lint"
)

// aReport has values that each form has to escape.
func aReport() *report {
	return &report{
		Policies: 2,
		Findings: []finding{
			{File: "a b/x,y:z.yaml", Line: 7, Finding: lint.Finding{
				Rule: "dead-direction", Severity: lint.Error, Object: lint.Object{Kind: "NetworkPolicy", Namespace: "shop", Name: "db"},
				Field: "spec.egress", Message: "100% dead,\nwhatever it says", Why: "Because.", Fix: "Add Egress.",
			}},
			{Finding: lint.Finding{
				Rule: "no-rules", Severity: lint.Warning, Object: lint.Object{Kind: "AdminNetworkPolicy", Name: "closed"},
				Message: "there is none", Why: "No effect.", Fix: "Add rules.",
			}},
			{File: "/abs/x.yaml", Finding: lint.Finding{
				Rule: "no-rules", Severity: lint.Info, Object: lint.Object{Kind: "AdminNetworkPolicy", Name: "other"},
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
warning: AdminNetworkPolicy closed: there is none [no-rules]
    No effect.
    Fix: Add rules.
/abs/x.yaml: info: AdminNetworkPolicy other: there is none [no-rules]
    Fix: Add rules.
3 findings in 2 policies: 1 error, 1 warning, 1 info, 1 ignored
`
	if got := written(t, "text"); got != want {
		t.Errorf("got\n%s", got)
	}
}

// Each finding is one command on one line, whatever is in it.
func TestReportForGitHub(t *testing.T) {
	const want = `::error file=a b/x%2Cy%3Az.yaml,line=7,title=dead-direction::NetworkPolicy shop/db spec.egress: 100%25 dead,%0Awhatever it says%0ABecause.%0AFix: Add Egress.
::warning title=no-rules::AdminNetworkPolicy closed: there is none%0ANo effect.%0AFix: Add rules.
::notice file=/abs/x.yaml,title=no-rules::AdminNetworkPolicy other: there is none%0ANo effect.%0AFix: Add rules.
`
	if got := written(t, "github"); got != want {
		t.Errorf("got\n%s", got)
	}
}

// The document has what the schema of SARIF 2.1.0 requires, with the values that it
// allows.
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
						ID                   string
						HelpURI              string
						ShortDescription     struct{ Text string }
						DefaultConfiguration struct{ Level string }
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
		if r.ID == "" || r.ShortDescription.Text == "" || !slices.Contains(levels, r.DefaultConfiguration.Level) || !strings.HasSuffix(r.HelpURI, "docs/lints.md#"+r.ID) {
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

// A comment ignores the findings of its rule on its line, or below it, or of the object
// that it is above. "A" and "B" are the lines of two findings of one rule.
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
		at      string // which comment is replaced
		comment string
		flags   string
		want    []string // rules and lines that remain
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

// The examples of docs/lints.md, as files: the bad one has findings of its rule only, each
// with its line, and the good one has none.
func TestExamplesOfRules(t *testing.T) {
	t.Chdir("../../pkg/lint/testdata")
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
	t.Chdir("../../pkg/lint/testdata")
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
		{args: "-f cluster.yaml -f node-address/good.yaml --service-cidr 192.168.0.0/16", code: 1, stdout: "[service-address]"},
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
	if code, stdout, stderr := call(t, namespace, "check -f -"); code != 2 || stdout != "" || !strings.Contains(stderr, "there is no policy to check") {
		t.Errorf("without policies: got %d\n%s%s", code, stdout, stderr)
	}
}
