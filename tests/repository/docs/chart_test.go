package docs

import (
	"encoding/json"
	"maps"
	"regexp"
	"testing"
)

// setByChart are flags that the chart sets itself, or by a value for agents and status
// writer together, and those that make no sense in a DaemonSet or a Deployment.
var setByChart = map[string]bool{
	"hostname-override": true, "probe-socket": true, "kubeconfig": true, "manifests": true, "version": true, "help": true,
	"admin-policies": true, "audit": true, "feature-gates": true, "metrics-tls": true,
}

// flagsOfChart are the flags that are values of the Helm chart.
type flagsOfChart struct {
	Properties struct {
		Flags struct {
			Properties        map[string]any
			PatternProperties map[string]any
		}
	}
}

// Every flag can be set in the Helm chart, and what can be set is a flag.
func TestChartHasEveryFlag(t *testing.T) {
	var schema struct {
		Properties struct{ Agent, StatusWriter flagsOfChart }
	}
	if err := json.Unmarshal([]byte(read(t, "charts/kube-network-policies/values.schema.json")), &schema); err != nil {
		t.Fatal(err)
	}
	all, err := helps()
	if err != nil {
		t.Fatal(err)
	}
	t.Run("agent", func(t *testing.T) { schema.Properties.Agent.compare(t, all[0]) })
	writer := maps.Clone(all[1])
	delete(writer, "metrics-bind-address") // statusWriter.metricsPort
	t.Run("status-writer", func(t *testing.T) { schema.Properties.StatusWriter.compare(t, writer) })
}

func (c flagsOfChart) compare(t *testing.T, program help) {
	flags := c.Properties.Flags
	for flag := range program {
		_, ok := flags.Properties[flag]
		for pattern := range flags.PatternProperties {
			ok = ok || regexp.MustCompile(pattern).MatchString(flag)
		}
		if !ok && !setByChart[flag] {
			t.Errorf("the chart has no --%s: add it to values.schema.json", flag)
		}
	}
	for flag := range flags.Properties {
		if _, ok := program[flag]; !ok {
			t.Errorf("the chart has --%s, which does not exist", flag)
		}
	}
}
