package chart

import (
	"maps"
	"regexp"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"sigs.k8s.io/yaml"
)

// The objects for the Prometheus operator have no field that it does not know, and no
// value of another type: the API servers of the tests do not have its kinds.
func TestOperatorObjects(t *testing.T) {
	c := load(t)
	for name, v := range map[string]Values{
		"alone":       values(t, "metrics: {podMonitor: {enabled: true}, prometheusRule: {enabled: true}}"),
		"self-signed": values(t, "metrics: {secure: {enabled: true}, podMonitor: {enabled: true}}"),
		"every value": values(t, read(t, everyValue)),
	} {
		t.Run(name, func(t *testing.T) {
			decoded := 0
			for key, object := range objects(t, render(t, c, v)) {
				var into any
				switch object["kind"] {
				case monitoringv1.PodMonitorsKind:
					into = new(monitoringv1.PodMonitor)
				case monitoringv1.PrometheusRuleKind:
					into = new(monitoringv1.PrometheusRule)
				default:
					continue
				}
				decoded++
				if got, want := object["apiVersion"], monitoringv1.SchemeGroupVersion.String(); got != want {
					t.Errorf("%s has the version %s, want %s", key, got, want)
				}
				text, err := yaml.Marshal(object)
				if err != nil {
					t.Fatal(err)
				}
				if err := yaml.UnmarshalStrict(text, into); err != nil {
					t.Errorf("%s: %v", key, err)
				}
			}
			if decoded == 0 {
				t.Error("no objects of the operator")
			}
		})
	}
}

// The ServiceMonitor of docs/install/prometheus.md is valid, too.
func TestServiceMonitorOfThePage(t *testing.T) {
	found := 0
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(read(t, "../../docs/install/prometheus.md"), -1) {
		for _, document := range strings.Split(block[1], "\n---\n") {
			if !strings.Contains(document, "kind: ServiceMonitor\n") {
				continue
			}
			found++
			if err := yaml.UnmarshalStrict([]byte(document), new(monitoringv1.ServiceMonitor)); err != nil {
				t.Error(err)
			}
		}
	}
	if found != 1 {
		t.Errorf("%d ServiceMonitors on the page, want 1", found)
	}
}

// Annotations lead Prometheus to metrics that it can read, and users may add to them and change them.
func TestScrapeAnnotations(t *testing.T) {
	c := load(t)
	scraped := map[string]any{"prometheus.io/scrape": "true", "prometheus.io/port": "9080"}
	for text, want := range map[string]map[string]any{
		"": scraped,
		"agent: {flags: {metrics-bind-address: null}}":                                     scraped,
		"agent: {flags: {metrics-bind-address: '[fd00::1]:9090'}}":                         {"prometheus.io/scrape": "true", "prometheus.io/port": "9090"},
		"agent: {flags: {metrics-bind-address: '127.0.0.1:9080'}}":                         nil,
		"agent: {flags: {metrics-bind-address: 'localhost:9080'}, podAnnotations: {a: b}}": {"a": "b"},
		"metrics: {secure: {enabled: true}}":                                               {"prometheus.io/scrape": "true", "prometheus.io/port": "9080", "prometheus.io/scheme": "https"},
		"agent: {podAnnotations: {prometheus.io/scrape: 'false'}}":                         {"prometheus.io/scrape": "false", "prometheus.io/port": "9080"},
	} {
		set := objects(t, render(t, c, values(t, text)))["DaemonSet kube-system/netpol-agent"]
		got, _ := set["spec"].(map[string]any)["template"].(map[string]any)["metadata"].(map[string]any)["annotations"].(map[string]any)
		if !maps.Equal(got, want) {
			t.Errorf("%s: the annotations are %v, want %v", text, got, want)
		}
	}
}
