package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

// largeCluster is a List of pods in namespaces that are closed but for their web
// pods, who may call the api pods of their team.
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

func TestTableOfThousandPods(t *testing.T) {
	code, stdout, stderr := call(t, largeCluster(1000, 20), "matrix --port http -f -")
	if code != 0 || stderr != "" {
		t.Fatalf("got %d, %s", code, stderr)
	}
	lines, groups := strings.Split(stdout, "\n"), 0
	for _, line := range lines {
		if strings.Contains(line, " +") {
			groups++
		}
		if !strings.Contains(line, ": ") && utf8.RuneCountInString(line) > maxWidth {
			t.Errorf("a line of %d columns: %s", utf8.RuneCountInString(line), line)
		}
	}
	// The web and the api pods of ten teams each, and the db pods, in the table
	// and below it.
	if want := 2 * 21; groups != want || len(lines) > 60 {
		t.Errorf("%d groups on %d lines, want %d groups:\n%s", groups, len(lines), want, stdout)
	}
}

func TestNumberedColumnsWithoutRowAreListed(t *testing.T) {
	command := "matrix --port http -f -"
	for i := 0; i < 20; i += 3 { // web pods
		command += fmt.Sprintf(" --from ns-%02d/pod-%04d", i, i)
	}
	code, stdout, stderr := call(t, largeCluster(1000, 20), command)
	if code != 0 || !strings.Contains(stdout, "\n 1 ns-00/pod-0000 ") || strings.Contains(stdout, "Column 1:") || !strings.Contains(stdout, "\nColumn 8: ") {
		t.Errorf("got %d %s\n%s", code, stderr, stdout)
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
	cells, allowed := 0, 0
	for _, row := range got.Allowed {
		for _, reaches := range row {
			cells++
			if reaches {
				allowed++
			}
		}
	}
	if len(got.Pods) != 1000 || cells != 1000*1000 || allowed <= 1000 || allowed > 20*1000 {
		t.Errorf("%d pods, %d cells, %d allowed", len(got.Pods), cells, allowed)
	}
}
