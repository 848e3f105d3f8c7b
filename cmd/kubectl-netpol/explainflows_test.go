package main

import (
	"bytes"
	"context"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// recordOf returns a record of a flow to TCP 8000 of shop/api. more are further fields.
func recordOf(source, verdict, more string) string {
	return strings.NewReplacer("SOURCE", source, "VERDICT", verdict, "MORE", more).Replace(
		`{"type":"flow","node":"NODE","source":{SOURCE},"destination":{"namespace":"shop","pod":"api","address":"10.0.2.1"},"protocol":"TCP","port":8000,"verdict":"VERDICT","direction":"ingress","tier":"networkpolicy","reason":"isolated","policy":{"kind":"NetworkPolicy","namespace":"shop","name":"api"},"count":3,"first":"2026-01-02T03:00:00Z","last":"2026-01-02T03:04:00Z"MORE}`) + "\n"
}

const (
	fromWeb   = `"namespace":"shop","pod":"web","address":"10.0.1.1"`
	fromBlock = `"address":"203.0.113.1","block":"203.0.113.0/24"`
)

// The flows shown for a connection are those of its pods or addresses and its port.
func TestExplanationHasFlows(t *testing.T) {
	t.Chdir("testdata")
	agent := strings.ReplaceAll(agentLine, "NODE", "n2") + "\n"
	withAgent := func(records ...string) string {
		return agent + strings.ReplaceAll(strings.Join(records, ""), "NODE", "n2")
	}
	const none = "What agents recorded of it:\n  No packet.\n"
	const some = "\nWhat agents recorded of it:\n  On node n2, shop/web -> shop/api: denied (NetworkPolicy shop/api, isolated); packets: 3, the last one 5s ago.\n"
	for _, tc := range []struct {
		name, args, records string
		code                int
		want                string
	}{
		{"nothing", "shop/web shop/api --port 8000", agent, 0, none},
		{"the flow", "shop/web shop/api --port 8000", withAgent(recordOf(fromWeb, "deny", "")), 0, some},
		{"a named port", "shop/web shop/api --port http", withAgent(recordOf(fromWeb, "deny", "")), 0, some},
		{"remembered", "shop/web shop/api --port 8000", withAgent(recordOf(fromWeb, "deny", `,"remembered":"2026-01-02T03:03:56Z"`)), 0,
			some + "    Remembered: for 9s the kernel has decided packets like these without asking the agent.\n"},
		{"a domain name that has expired", "shop/web shop/api --port 8000", withAgent(recordOf(fromWeb, "deny", `,"why":"example.org expired 40 s ago"`)), 0,
			some + "    Why no domain name allowed it, by the agent: example.org expired 40 s ago.\n"},
		{"a clock that jumps", "shop/web shop/api --port 8000", withAgent(strings.Replace(recordOf(fromWeb, "deny", `,"remembered":"2027-01-02T03:03:56Z"`), `"last":"2026`, `"last":"2027`, 1)), 0,
			"the last one 0s ago.\n    Remembered: for 0s the kernel"},
		{"audited", "shop/web shop/api --port 8000", withAgent(recordOf(fromWeb, "allow", `,"audit":{"verdict":"deny","direction":"ingress","tier":"networkpolicy","reason":"isolated","policy":{"kind":"NetworkPolicy","namespace":"shop","name":"all"}}`)), 0,
			"allowed (NetworkPolicy shop/api, isolated); packets: 3, the last one 5s ago; audited policies: deny by NetworkPolicy shop/all, isolated.\n"},
		{"another port", "shop/web shop/api --port 9090", withAgent(recordOf(fromWeb, "deny", "")), 1, none},
		{"another protocol", "shop/web shop/api --port 8000 --protocol UDP", withAgent(recordOf(fromWeb, "deny", "")), 1, none},
		{"the other way", "shop/api shop/web --port 8000", withAgent(recordOf(fromWeb, "deny", "")), 1, none},
		{"an earlier pod of the address", "shop/web shop/api --port 8000", withAgent(strings.Replace(recordOf(fromWeb, "deny", ""), `"pod":"web"`, `"pod":"old"`, 1)), 0, none},
		{"an address", "10.0.1.1 shop/api --port 8000", withAgent(recordOf(fromWeb, "deny", "")), 0, some},
		{"an address of a block", "203.0.113.9 shop/api --port 8000", withAgent(recordOf(fromBlock, "allow", "")), 1, "On node n2, 203.0.113.0/24 -> shop/api: allowed"},
		{"an address beside a block", "203.0.114.9 shop/api --port 8000", withAgent(recordOf(fromBlock, "allow", "")), 1, none},
		{"an address that was denied", "203.0.113.9 shop/api --port 8000", withAgent(recordOf(fromBlock, "deny", "")), 1, none},
		{"as JSON", "shop/web shop/api --port 8000 -o json", withAgent(recordOf(fromWeb, "deny", `,"remembered":"2026-01-02T03:03:56Z"`)), 0, `"remembered": "2026-01-02T03:03:56Z"`},
		{"no records", "shop/web shop/api --port 8000", "{}", 2, "--records=-: line 1: no type"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, stdout, stderr := call(t, tc.records, "explain -f shop --records - "+tc.args)
			if code != tc.code || !strings.Contains(stdout+stderr, tc.want) {
				t.Errorf("exit code %d, want %d and\n%s\ngot\n%s%s", code, tc.code, tc.want, stdout, stderr)
			}
		})
	}
}

// --flows asks the agents of the live cluster. The answer names agents that do not answer.
func TestExplainAsksTheAgents(t *testing.T) {
	t.Chdir("testdata")
	answers := func(ctx context.Context, command []string, out, errs io.Writer) error {
		if got := strings.Join(command, " "); got != "kube-network-policies flows" {
			t.Errorf("ran %q", got)
		}
		return prints("n2", agentLine, recordOf(fromWeb, "deny", ""))(ctx, command, out, errs)
	}
	explain := func(agents fakeAgents) (stdout, stderr string, err error) {
		o := &options{notes: io.Discard, context: "shop", kubeconfig: kubeconfig(t, server(t, everywhere, "shop/cluster.yaml").URL), features: compile.AllFeatures()}
		var out, errs bytes.Buffer
		cmd := newExplain(o)
		o.adminPolicies = true
		cmd.SetContext(t.Context())
		cmd.SetOut(&out)
		cmd.SetErr(&errs)
		e := explainOptions{agentOptions: agentOptions{options: o, connect: agents.connect}, traffic: traffic{port: "8000", protocol: "TCP"}, flows: true, output: "text"}
		err = e.run(cmd, "shop/web", "shop/api")
		return out.String(), errs.String(), err
	}
	stdout, stderr, err := explain(fakeAgents{"n1": nil, "n2": answers})
	if err != nil || !strings.Contains(stdout, "On node n2, shop/web -> shop/api: denied") || !strings.Contains(stderr, "No answer of node n1: kube-system/agent-n1: the pod is Pending\n") {
		t.Errorf("error %v\n%s%s", err, stdout, stderr)
	}
	if stdout, _, err = explain(fakeAgents{"n1": nil}); err == nil || err.Error() != "no agent has answered" || stdout != "" {
		t.Errorf("none answers: error %v\n%s", err, stdout)
	}
}

// A flag without effect is an error rather than ignored.
func TestFlagsThatMeanNothing(t *testing.T) {
	t.Chdir("testdata")
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	const connection = "shop/web shop/api --port 8000"
	for command, want := range map[string]string{
		"explain " + connection + " -f shop --flows":                                     "--flows: not with --filename",
		"explain " + connection + " --flows --records flows.jsonl":                       "--flows: not with --records",
		"explain " + connection + " -f - --records -":                                    "--filename=- and --records=-: ",
		"explain " + connection + " -f shop --agents-namespace x":                        "--agents-namespace: agents are not asked without --flows",
		"explain " + connection + " -f shop --records flows.jsonl --agents-selector a=b": "--agents-selector: agents are not asked with --records",
		"view -f shop --agents-selector a=b":                                             "--agents-selector: agents are not asked with --filename",
		"view --records flows.jsonl --agents-selector a=b":                               "--agents-selector: agents are not asked with --records",
		"view -o html --agents-namespace x":                                              "--agents-namespace: agents are not asked with --output=html",
		"view -f shop --records none":                                                    "--records=none: open none: no such file",
		"view -f shop -o html --records none":                                            "--records=none: open none: no such file",
		"suggest -n shop -f shop --records flows.jsonl --agents-selector a=b":            "--agents-selector: agents are not asked with --records",
		"flows -f shop":                       "--filename: only the agents of a live cluster have flows",
		"flows -A -n shop":                    "--all-namespaces: not with --namespace=shop",
		"flows --feature-gates=EndPort=false": "--feature-gates: ",
		"flows --admin-policies=false":        "--admin-policies: ",
		"flows --cluster-network-policy":      "--cluster-network-policy: the flag was removed: write --admin-policies",
	} {
		t.Run(command, func(t *testing.T) {
			code, stdout, stderr := call(t, "", command)
			if code != exitError || stdout != "" || !strings.Contains(stderr, "error: "+want) {
				t.Errorf("exit code %d, %q, %q; want %q", code, stdout, stderr, want)
			}
		})
	}
}

// The page names agents that do not answer and shows the other agents' flows. Ages are
// never negative.
func TestViewOfAgentsThatDoNotAnswer(t *testing.T) {
	t.Chdir("testdata")
	agents := fakeAgents{"n1": nil, "n2": prints("n2", agentLine, strings.Replace(recordOf(fromWeb, "allow", ""), `"last":"2026`, `"last":"2027`, 1))}
	o := &options{notes: io.Discard, context: "shop", kubeconfig: kubeconfig(t, server(t, everywhere, "shop/cluster.yaml").URL), features: compile.AllFeatures()}
	v := &viewOptions{agentOptions: agentOptions{options: o, connect: agents.connect}}
	cmd := newView(o)
	o.adminPolicies = true
	cmd.SetContext(t.Context())
	cmd.SetErr(io.Discard)
	p, err := v.pages(cmd)
	if err != nil {
		t.Fatal(err)
	}

	page := p.matrixPage(pageQuery{By: "workload", Protocol: "TCP", State: stateNow, Flows: flowsShown}, false)
	if page.Problem != "" || page.Flows == nil {
		t.Fatalf("no flows: %q", page.Problem)
	}
	if want := []string{"No answer of node n1: the pod is Pending."}; !slices.Equal(page.Flows.Notes, want) {
		t.Errorf("notes %q, want %q", page.Flows.Notes, want)
	}
	if want := []string{"n2", "shop/web", "shop/api", "TCP 8000", "allow", "NetworkPolicy shop/api, isolated", "3", "0s"}; len(page.Flows.Rows) != 1 || !slices.Equal(page.Flows.Rows[0], want) {
		t.Errorf("rows %q, want %q", page.Flows.Rows, want)
	}
}

// The page as a file contains the flows of --records and does not reload.
func TestViewOfRecordsAsFile(t *testing.T) {
	t.Chdir("testdata")
	_, pageWithout, _ := call(t, "", "view -f shop -o html")
	code, page, stderr := call(t, "", "view -f shop -o html --records flows.jsonl")
	for _, want := range []string{`<section id="flows" aria-labelledby`, "<td class=\"text\">shop/web</td>", "packets allowed: 12"} {
		if code != 0 || !strings.Contains(page, want) {
			t.Errorf("exit code %d, %s, no %q in\n%s", code, stderr, want, page)
		}
		if strings.Contains(pageWithout, want) {
			t.Errorf("without records there is %q", want)
		}
	}
}
