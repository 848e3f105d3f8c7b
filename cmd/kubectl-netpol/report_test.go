package main

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
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

// oneFile is a file with one policy, whose fields and comments are on these lines.
type oneFile struct {
	lines     map[string]int
	remarks   []comment
	defaulted bool
}

func (f oneFile) position(_ lint.Object, field string) (string, int) {
	return "policy.yaml", f.lines[field]
}
func (f oneFile) comments(lint.Object) []comment       { return f.remarks }
func (f oneFile) written(_ lint.Object, _ string) bool { return !f.defaulted }

func TestIgnoredFindings(t *testing.T) {
	policy := func(annotations map[string]string) lint.Input {
		return lint.Input{Partial: true, Features: compile.AllFeatures(), Policies: []compile.Object{&networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db", Annotations: annotations},
			Spec: networkingv1.NetworkPolicySpec{
				PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
				Ingress: []networkingv1.NetworkPolicyIngressRule{
					{From: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "10.0.0.1/8"}}, {IPBlock: &networkingv1.IPBlock{CIDR: "10.0.0.2/8"}}}},
				},
			},
		}}}
	}
	lines := map[string]int{"": 3, "spec.ingress[0].from[0].ipBlock.cidr": 10, "spec.ingress[0].from[1].ipBlock.cidr": 12}
	for _, tc := range []struct {
		name        string
		comments    []comment
		annotations map[string]string
		disabled    []string
		want        []string // rules and lines that remain
		ignored     int
	}{
		{name: "no comment", want: []string{"cidr-form 10", "cidr-form 12"}},
		{name: "on the line", comments: []comment{{line: 10, text: "netpol:ignore cidr-form it is so"}}, want: []string{"cidr-form 12"}, ignored: 1},
		{name: "above the line", comments: []comment{{line: 9, text: "netpol:ignore cidr-form it is so"}}, want: []string{"cidr-form 12"}, ignored: 1},
		{name: "above other comments", comments: []comment{{line: 8, text: "netpol:ignore cidr-form it is so"}, {line: 9, text: "more"}}, want: []string{"cidr-form 12"}, ignored: 1},
		{name: "too far above", comments: []comment{{line: 8, text: "netpol:ignore cidr-form it is so"}}, want: []string{"ignore-comment 8", "cidr-form 10", "cidr-form 12"}},
		{name: "above the object", comments: []comment{{line: 2, text: "netpol:ignore cidr-form it is so"}}, ignored: 2},
		{name: "without a reason", comments: []comment{{line: 2, text: "netpol:ignore cidr-form"}}, want: []string{"ignore-comment 2", "cidr-form 10", "cidr-form 12"}},
		{name: "without a rule", comments: []comment{{line: 2, text: "netpol:ignore"}}, want: []string{"ignore-comment 2", "cidr-form 10", "cidr-form 12"}},
		{name: "an unknown rule", comments: []comment{{line: 2, text: "netpol:ignore cidr-from it is so"}}, want: []string{"ignore-comment 2", "cidr-form 10", "cidr-form 12"}},
		{name: "another rule", comments: []comment{{line: 10, text: "netpol:ignore no-dns it is so"}}, want: []string{"ignore-comment 10", "cidr-form 10", "cidr-form 12"}},
		{name: "another comment", comments: []comment{{line: 10, text: "see netpol:ignore cidr-form"}, {line: 10, text: "netpol:ignored"}}, want: []string{"cidr-form 10", "cidr-form 12"}},
		{name: "a disabled rule", comments: []comment{{line: 10, text: "netpol:ignore cidr-form it is so"}}, disabled: []string{"cidr-form"}},
		{name: "annotation", annotations: map[string]string{lint.IgnoreAnnotation + "cidr-form": "it is so"}, ignored: 2},
		{name: "annotation without a reason", annotations: map[string]string{lint.IgnoreAnnotation + "cidr-form": " "}, want: []string{"ignore-comment 0", "cidr-form 10", "cidr-form 12"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newReport(policy(tc.annotations), oneFile{lines: lines, remarks: tc.comments}, tc.disabled)
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
