// Package monitoring tests what operators watch the agent and the status writer by: their
// metrics, the alerts and the dashboard. It needs promtool and prometheus, which make
// monitoring-tools installs, and a lab.
package monitoring

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-network-policies/tests/cluster/monitoring/prometheus"
	"sigs.k8s.io/kube-network-policies/tests/cluster/monitoring/recording"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

const (
	files      = "../../../charts/kube-network-policies/files"
	operations = "docs/operations.md"
)

// rule is an alert.
type rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

func readRules(t *testing.T) (rules []rule) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(files, "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Name  string `json:"name"`
			Rules []rule `json:"rules"`
		} `json:"groups"`
	}
	if err := yaml.UnmarshalStrict(content, &file); err != nil {
		t.Fatal(err)
	}
	for _, group := range file.Groups {
		rules = append(rules, group.Rules...)
	}
	return rules
}

// panel is a panel of the dashboard. A row may have panels of its own.
type panel struct {
	Title   string  `json:"title"`
	Type    string  `json:"type"`
	Panels  []panel `json:"panels"`
	Targets []struct {
		Expr         string `json:"expr"`
		LegendFormat string `json:"legendFormat"`
	} `json:"targets"`
	GridPos     recording.Place `json:"gridPos"`
	FieldConfig struct {
		Defaults struct {
			Unit string `json:"unit"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
}

func readPanels(t *testing.T) []panel {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(files, "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []panel `json:"panels"`
	}
	if err := json.Unmarshal(content, &dashboard); err != nil {
		t.Fatal(err)
	}
	var panels []panel
	for _, p := range dashboard.Panels {
		panels = append(append(panels, p), p.Panels...)
	}
	return slices.DeleteFunc(panels, func(p panel) bool { return p.Type == "row" })
}

func TestAlertRules(t *testing.T) {
	prometheus.Need(t, "promtool")
	if output, err := exec.Command("promtool", "test", "rules", "alerts.yaml").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}

// Each alert has a test, a severity, and a section of the documentation.
func TestAlertsAreDescribed(t *testing.T) {
	tests, err := os.ReadFile("alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("../../../" + operations)
	if err != nil {
		t.Fatal(err)
	}
	rules := readRules(t)
	if len(rules) == 0 {
		t.Fatal("no alerts")
	}
	for _, r := range rules {
		if fires := fmt.Sprintf("expr: count(ALERTS{alertname=%q, alertstate=\"firing\"})", r.Alert); !bytes.Contains(tests, []byte(fires)) {
			t.Errorf("%s has no test", r.Alert)
		}
		if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) {
			t.Errorf("%s has the severity %q", r.Alert, r.Labels["severity"])
		}
		if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s lacks a summary or a description", r.Alert)
		}
		if want := operations + "#" + strings.ToLower(r.Alert); !strings.HasSuffix(want, r.Annotations["runbook"]) || r.Annotations["runbook"] == "" {
			t.Errorf("%s has the runbook %s, want the end of %s", r.Alert, r.Annotations["runbook"], want)
		}
		if !bytes.Contains(doc, []byte("\n### "+r.Alert+"\n")) {
			t.Errorf("%s has no section for %s", operations, r.Alert)
		}
	}
}

// legacy are names that existing dashboards know, whatever conventions say.
var legacy = regexp.MustCompile(`^(packet|nfqueue)_`)

// Names and help texts follow the conventions of Prometheus.
func TestMetricsFollowConventions(t *testing.T) {
	prometheus.Need(t, "promtool")
	c := start(t, 1)
	for who, text := range map[string]string{"agent": c.scrape(t, c.agentAddress(0)), "status writer": c.scrape(t, writerAddress)} {
		check := exec.Command("promtool", "check", "metrics")
		check.Stdin = strings.NewReader(text)
		output, err := check.CombinedOutput()
		if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if !strings.Contains(text, "\nnetpol_") {
			t.Errorf("metrics of the %s:\n%s", who, text)
		}
		for line := range strings.Lines(string(output)) {
			if !legacy.MatchString(line) {
				t.Errorf("%s: %s", who, line)
			}
		}
	}
}

var (
	selector  = regexp.MustCompile(`\b(?:(?:netpol|nfqueue|packet)_[a-z_]+|up\b)(?:\{[^}]*\})?`)
	variables = strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*")
)

// All queries of the dashboard return data of a cluster in use. So does each selector in
// the alerts, none of which fires for long.
func TestQueriesReturnData(t *testing.T) {
	prometheus.Need(t, "prometheus")
	var queries []string
	for _, p := range readPanels(t) {
		if len(p.Targets) == 0 {
			t.Errorf("panel %q has no query", p.Title)
		}
		for _, target := range p.Targets {
			queries = append(queries, variables.Replace(target.Expr))
			queries = append(queries, selector.FindAllString(variables.Replace(target.Expr), -1)...)
		}
	}
	for _, r := range readRules(t) {
		selected := selector.FindAllString(r.Expr, -1)
		if len(selected) == 0 {
			t.Errorf("%s selects nothing", r.Alert)
		}
		queries = append(queries, selected...)
	}
	slices.Sort(queries)
	queries = slices.Compact(queries)
	c := start(t, 1)
	server := c.startPrometheus(t)
	hasData := func(query string) bool { return len(server.Query(t, query)) > 0 }
	wait(t, "two targets", func() bool { return hasData("count(up == 1) == 2") })
	missing := queries
	wait(t, "data for each query", func() bool {
		missing = slices.DeleteFunc(missing, hasData)
		return len(missing) == 0 || t.Failed()
	})
	if len(missing) > 0 {
		t.Errorf("no data for these queries:\n%s", strings.Join(missing, "\n"))
	}
	if hasData("netpol_no_such_metric") {
		t.Error("there is data of a metric that does not exist")
	}
}
