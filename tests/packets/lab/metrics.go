package lab

import (
	"fmt"
	"strconv"
	"strings"
)

// Sample is one line of a scrape.
type Sample struct {
	Name   string
	Labels map[string]string
	Value  float64
}

// Metrics is a scrape in the Prometheus text format.
type Metrics []Sample

// Sum returns the sum of the samples of a name whose labels have these values, given as
// pairs of a label and its value. Without samples it is 0.
func (m Metrics) Sum(name string, labels ...string) float64 {
	var sum float64
	for _, sample := range m {
		if sample.Name == name && sample.has(labels) {
			sum += sample.Value
		}
	}
	return sum
}

// Has reports whether there is a sample of that name.
func (m Metrics) Has(name string) bool {
	for _, sample := range m {
		if sample.Name == name {
			return true
		}
	}
	return false
}

func (s Sample) has(labels []string) bool {
	for i := 0; i < len(labels); i += 2 {
		if s.Labels[labels[i]] != labels[i+1] {
			return false
		}
	}
	return true
}

// parseMetrics parses a scrape. It does not support label values that contain a quote, a
// comma or a line feed; the agent has none.
func parseMetrics(text string) (Metrics, error) {
	var metrics Metrics
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		end := strings.LastIndexByte(line, ' ')
		if end < 0 {
			return nil, fmt.Errorf("metrics line %q has no value", line)
		}
		value, err := strconv.ParseFloat(line[end+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("metrics line %q: %w", line, err)
		}
		name, rest, _ := strings.Cut(line[:end], "{")
		sample := Sample{Name: name, Labels: make(map[string]string), Value: value}
		for pair := range strings.SplitSeq(strings.TrimSuffix(rest, "}"), ",") {
			if key, quoted, ok := strings.Cut(pair, "="); ok {
				sample.Labels[key] = strings.Trim(quoted, `"`)
			}
		}
		metrics = append(metrics, sample)
	}
	return metrics, nil
}
