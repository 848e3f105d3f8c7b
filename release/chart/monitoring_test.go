package chart

import (
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"sigs.k8s.io/yaml"
)

// The objects for the Prometheus operator have no field that it does not know, and no
// value of another type: the API servers of the tests do not have its kinds.
func TestOperatorObjects(t *testing.T) {
	c := load(t)
	for name, v := range map[string]Values{
		"alone":       values(t, "{agent: {flags: {metrics-bind-address: ':9080'}}, metrics: {podMonitor: {enabled: true}, prometheusRule: {enabled: true}}}"),
		"self-signed": values(t, "{agent: {flags: {metrics-bind-address: ':9080'}}, metrics: {secure: {enabled: true}, podMonitor: {enabled: true}}}"),
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
