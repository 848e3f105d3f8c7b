package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

// largeCluster returns a List of pods. Their namespaces are isolated, except that web pods
// may call the api pods of their team.
func largeCluster(pods, namespaces int) string {
	var items []string
	add := func(format string, args ...any) { items = append(items, fmt.Sprintf(format, args...)) }
	for i := range 10 {
		add(`{"apiVersion":"v1","kind":"Node","metadata":{"name":"n%d"}}`, i)
	}
	for i := range namespaces {
		add(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"ns-%02d","labels":{"team":"team-%d"}}}`, i, i%10)
		add(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"namespace":"ns-%02d","name":"closed"},"spec":{"podSelector":{},"policyTypes":["Ingress"]}}`, i)
		add(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"namespace":"ns-%02d","name":"api"},"spec":{
			"podSelector":{"matchLabels":{"tier":"api"}},"ingress":[{"ports":[{"port":"http"}],"from":[
			{"namespaceSelector":{"matchLabels":{"team":"team-%d"}},"podSelector":{"matchLabels":{"tier":"web"}}}]}]}}`, i, i%10)
	}
	for i := range pods {
		add(`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns-%02d","name":"pod-%04d","labels":{"tier":"%s"}},
			"spec":{"nodeName":"n%d","containers":[{"name":"c","ports":[{"name":"http","containerPort":8080}]}]},
			"status":{"phase":"Running","podIPs":[{"ip":"10.0.%d.%d"}]}}`,
			i%namespaces, i, []string{"web", "api", "db"}[i%3], i%10, i/250, i%250+1)
	}
	return `{"apiVersion":"v1","kind":"List","items":[` + strings.Join(items, ",") + `]}`
}

// No line is wider than the terminal, whatever its width.
func TestOutputFitsTheTerminal(t *testing.T) {
	cluster := largeCluster(1000, 20)
	for _, width := range []int{40, 80, 120, 200} {
		for _, command := range []string{"matrix -f -", "matrix --port http -f -", "matrix -f - -n ns-03", "matrix -f - --by namespace"} {
			code, stdout, stderr := callAt(t, width, cluster, command)
			if code != 0 || stderr != "" {
				t.Fatalf("%s: got %d, %s", command, code, stderr)
			}
			for line := range strings.Lines(stdout) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width {
					t.Errorf("%s at %d: a line of %d columns: %s", command, width, n, line)
				}
			}
		}
	}
}

func TestJSONOfThousandPods(t *testing.T) {
	code, stdout, stderr := call(t, largeCluster(1000, 20), "matrix --port http -f - -o json")
	var got struct {
		Pods    []string
		Allowed map[string]map[string]bool
	}
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 0 {
		t.Fatal(code, err, stderr)
	}
	const rows = 1000 + 20 + 1 + 1 // pods, those that may come, and outside
	cells, allowed := 0, 0
	for _, row := range got.Allowed {
		for _, reaches := range row {
			cells++
			if reaches {
				allowed++
			}
		}
	}

	if len(got.Pods) != rows || cells != rows*rows || allowed <= 1000 || allowed > 20*1000 {
		t.Errorf("%d pods, %d cells, %d allowed", len(got.Pods), cells, allowed)
	}
}
