package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// completions returns the completions of a command line. Its last word may be empty.
func completions(t *testing.T, words ...string) []string {
	t.Helper()
	var out, errs strings.Builder
	code := run(t.Context(), append([]string{"__complete"}, words...), strings.NewReader(""), &out, &errs)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if code != 0 || !strings.HasPrefix(lines[len(lines)-1], ":") {
		t.Fatalf("got %d\n%s%s", code, &out, &errs)
	}
	var names []string
	for _, line := range lines[:len(lines)-1] {
		name, _, _ := strings.Cut(line, "\t")
		names = append(names, name)
	}
	return names
}

func TestCompletion(t *testing.T) {
	t.Chdir("testdata")
	defer func(limit time.Duration) { completionTime = limit }(completionTime)
	completionTime = time.Hour
	config := kubeconfig(t, server(t, everywhere, "shop").URL)
	const shop = "../../../examples/online-shop"
	for line, want := range map[string]string{
		"mat":                              "matrix",
		"matrix --by ":                     "workload pod namespace",
		"matrix -o ":                       "table json",
		"matrix --color a":                 "auto always",
		"explain -o ":                      "text json policy",
		"check -o ":                        "text json sarif github junit",
		"check --fail-on ":                 "error warning info none",
		"diff --protocol ":                 "TCP UDP SCTP ICMP",
		"diff --family ":                   "IPv4 IPv6",
		"matrix --port ":                   "",
		"matrix -f shop -n ":               "monitoring shop",
		"matrix -f " + shop + " -n pay":    "payments",
		"matrix -f shop -n shop --from ":   "api db web",
		"matrix -f shop --to monitoring/p": "monitoring/prometheus",
		"explain -n payments -f " + shop + " svc/":            "svc/ledger-db svc/payment",
		"explain -n payments -f " + shop + " a cronjob":       "cronjob/settlement",
		"explain -n payments -f " + shop + " a b ":            "",
		"explain -f " + shop + " payments/deploy/":            "payments/deploy/payment",
		"explain -f missing ":                                 "",
		"explain --kubeconfig " + config + " --context shop ": "api db monitoring/node-exporter monitoring/prometheus svc/db web",
		"explain --kubeconfig " + config + " --context ":      "other shop",
		"explain --kubeconfig missing --context ":             "",
	} {
		t.Run(line, func(t *testing.T) {
			if got := completions(t, strings.Split(line, " ")...); strings.Join(got, " ") != want {
				t.Errorf("got %v, want %s", got, want)
			}
		})
	}
}

// The completed formats are those that the command accepts.
func TestCompletedOutputsExist(t *testing.T) {
	t.Chdir("testdata")
	for command, names := range outputs {
		args := map[string]string{"explain": "a b --port 1", "diff": "-f x -f y", "assert": "expectations.yaml"}[command]
		_, _, stderr := call(t, "", command+" -o none -f none "+args)
		_, list, _ := strings.Cut(stderr, "must be one of ")
		accepted := strings.Split(strings.TrimSpace(list), ", ")
		slices.Sort(accepted)
		if got := slices.Sorted(slices.Values(names)); !slices.Equal(got, accepted) {
			t.Errorf("%s: completes %v, accepts %v", command, got, accepted)
		}
	}
}

// kubectl runs the script with the words that follow "kubectl netpol".
func TestCompletionScript(t *testing.T) {
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	kubectl := "#!/bin/sh\nprintf '%s|' \"$@\"\n"
	if err := os.WriteFile(filepath.Join(folder, "kubectl"), []byte(kubectl), 0o755); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat("kubectl_complete-netpol")
	if err != nil || info.Mode()&0o111 == 0 {
		t.Fatalf("cannot run the script: %v", err)
	}

	script := exec.Command(shell, "kubectl_complete-netpol", "matrix", "--from", "")
	script.Env = []string{"PATH=" + folder + ":" + os.Getenv("PATH")}
	if out, err := script.CombinedOutput(); err != nil || string(out) != "netpol|__complete|matrix|--from||" {
		t.Errorf("got %q, %v", out, err)
	}
}
