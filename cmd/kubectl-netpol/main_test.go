package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// call runs the program in testdata.
func call(t *testing.T, stdin, command string) (code int, stdout, stderr string) {
	t.Helper()
	return callAt(t, defaultWidth, stdin, command)
}

// callAt runs the program as if in a terminal of that width.
func callAt(t *testing.T, width int, stdin, command string) (code int, stdout, stderr string) {
	t.Helper()
	t.Setenv("COLUMNS", strconv.Itoa(width))
	var out, err strings.Builder
	code = run(t.Context(), strings.Fields(command), strings.NewReader(stdin), &out, &err)
	return code, out.String(), err.String()
}

func TestExitCodes(t *testing.T) {
	t.Chdir("testdata")
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for _, tc := range []struct {
		command string
		code    int
		stderr  string
	}{
		{"", 0, ""},
		{"matrix --port 80 -f shop", 0, ""},
		{"matrix --port 80 -f shop -n shop", 0, ""},
		{"matrix -f shop", 0, ""},
		{"matrix -f shop -A --by pod -l app=web", 0, ""},
		{"matrix -f shop -A -n shop", 2, "--all-namespaces: not with --namespace=shop"},
		{"matrix -f shop --by team", 2, "--by=team: must be pod, workload or namespace"},
		{"matrix -f shop -l app=none", 2, "no pods to show: no pod there has an address and the labels app=none"},
		{"matrix -f shop -l =web", 2, "--selector==web: "},
		{"matrix -f shop --color yes", 2, "--color=yes: must be auto, always or never"},
		{"matrix -f shop --protocol UDP", 2, "--protocol=UDP: needs --port"},
		{"matrix -f shop --protocol icmp", 0, ""},
		{"matrix --port 80 -f shop -o xml", 2, "--output=xml: must be one of table, json"},
		{"matrix --port 80 -f shop -n empty", 2, "--namespace=empty: there is no such namespace; there are monitoring, shop"},
		{"matrix --port 80 -f shop --from shop/wb", 2, `--from=shop/wb: no pod "shop/wb"; near it: shop/db, shop/web`},
		{"matrix --port 80 -f shop --family IPv5", 2, "--family=IPv5: must be IPv4 or IPv6"},
		{"matrix --port 80 -f shop --feature-gates=endport=false", 2, `"endport": must be one of CIDRGroups, DomainNames, EndPort, `},
		{"matrix --port 80 -f missing", 2, "missing: no such file"},
		{"matrix --port 80", 2, "kubeconfig"},
		{"explain shop/api shop/db --port 5432 -f shop", 0, ""},
		{"explain api db -n shop --port 5432 -f shop", 0, ""},
		{"explain shop/web shop/db --port 5432 -f shop", 1, ""},
		{"explain shop/web shop/db --port 5432 -f shop -o json", 1, ""},
		{"explain shop/web shop/db --port sql --protocol UDP -f shop", 1, ""},
		{"explain shop/web shop/web --port 1 -f shop", 0, ""},
		{"explain shop/web db --port 5432 -f shop", 2, `destination: no pod "default/db"; near it: shop/db`},
		{"explain deploy/order svc/order-db -n orders -f ../../../examples/online-shop", 0, ""},
		{"explain storefront/web deploy/cart -n orders --port 8080 -f ../../../examples/online-shop", 0, ""},
		{"explain deploy/cart svc/order-db -n orders -f ../../../examples/online-shop", 1, ""},
		{"explain deploy/cart svc/payment -n payments -f ../../../examples/online-shop", 2, "source: no pod of deploy/cart in namespace payments; there are those of cronjob/settlement"},
		{"matrix -f shop/policies.yaml", 2, "no pods to show: there are none, nor workloads"},
		{"explain a/b c/d --port 80 -f shop/policies.yaml", 2, `no pod "a/b": there are no pods`},
		{"explain shop/web shop/nowhere --port 80 -f shop", 2, `no pod "shop/nowhere"; namespace shop has api, db, web`},
		{"explain shop/web --port 5432 -f shop", 2, "name a source and a destination, SRC DST: got 1 argument"},
		{"diff -f shop -f shop", 0, ""},
		{"diff -f shop -f proposed", 1, ""},
		{"diff -f shop -f proposed --port 1 --address 8.8.8.8", 1, ""},
		{"diff -f shop -f proposed --address unknown", 2, `"unknown" is neither an address nor namespace/pod`},
		{"diff -f proposed -f proposed", 2, "no pods: there is nothing to compare"},
		{"diff -f shop -f proposed --protocol udp", 1, ""},
		{"diff -f shop -f proposed --protocol icmp", 1, ""},
		{"diff -f shop -f proposed --protocol dccp", 2, `protocol "dccp": must be TCP, UDP, SCTP or ICMP`},
		{"diff -f shop -f proposed --port http -o json", 1, ""},
		{"diff -f shop -f proposed --port 0", 2, `port "0": must be in 1-65535`},
		{"diff -f shop -f proposed -n shop", 1, ""},
		{"diff -f shop -f proposed -n monitoring --protocol icmp", 1, ""},
		{"diff -f shop -f proposed -n monitoring --port 5432", 1, ""},
		{"diff -f shop -f proposed -n empty", 2, "--namespace=empty: there is no such namespace; there are monitoring, shop"},
		{"diff -f shop -f proposed -o markdown", 1, ""},
		{"diff -f shop -f proposed -o yaml", 2, "--output=yaml: must be one of text, markdown, json"},
		{"explain monitoring/prometheus shop/db --port 5432 -f shop -f admin.yaml", 1, ""},
		{"explain monitoring/prometheus shop/db --port 5432 -f shop/cluster.yaml -f admin.yaml", 0, ""},
		{"explain shop/web 192.168.0.1 --port 10250 -f shop -f admin.yaml", 1, ""},
		{"explain shop/api 192.168.0.2 --port 10250 -f shop -f admin.yaml", 0, ""},
		{"matrix --port 80 -f shop -f admin.yaml", 0, "Not known: what is allowed by domain names, which only agents know: ClusterNetworkPolicy/egress spec.egress[0]\n"},
		{"diff -f shop -f admin.yaml", 1, ""},
		{"diff", 2, "--filename: one"},
		{"diff -f shop -f shop/cluster.yaml", 0, ""},
		{"check -f missing -o json", 2, "error: stat missing: no such file"},
		{"check -f shop", 0, ""},
		{"check -f faulty.yaml --feature-gates=EndPort=false,SCTP=false", 1, ""},
		{"check -f faulty.yaml -n other", 2, "--namespace=other: there is no such namespace; there are shop"},
		{"check -f faulty.yaml -n shpo", 2, "--namespace=shpo: there is no such namespace; near it: shop"},
		{"list -f shop -n shpo", 2, "--namespace=shpo: there is no such namespace; near it: shop"},
		{"view -f shop -n shpo -o html", 2, "--namespace=shpo: there is no such namespace; near it: shop"},
		{"check -f admin.yaml", 0, ""},
		{"check -f admin.yaml --feature-gates=Nodes=false", 1, ""},
		{"check -f admin.yaml --feature-gates=DomainNames=false", 1, ""},
		{"check -f admin.yaml --feature-gates=Nodes=false -n shop", 0, ""},
		{"check -f shop --feature-gates=EndPort=false", 0, ""},
		{"check -f proposed --feature-gates=EndPort=false", 1, ""},
		{"check -f admin.yaml --admin-policies=false", 2, "error: there is neither a policy nor a pod to check"},
		{"check shop", 2, `unexpected argument "shop": files and directories are named by -f`},
		{"check -f shop unexpected", 2, `unexpected argument "unexpected"`},
		{"check --flag", 2, "unknown flag: --flag"},
	} {
		t.Run(tc.command, func(t *testing.T) {
			code, stdout, stderr := call(t, "", tc.command)
			if code != tc.code || !strings.Contains(stderr, tc.stderr) || (code == 2 && !strings.Contains(tc.command, "json")) != (stdout == "") {
				t.Errorf("got %d, want %d\n%s%s", code, tc.code, stdout, stderr)
			}
		})
	}
}

func TestVersion(t *testing.T) {
	code, want, stderr := call(t, "", "version")
	if code != 0 || !strings.HasPrefix(want, "kubectl-netpol, version ") {
		t.Errorf("version: exit %d, %q, %s", code, want, stderr)
	}
	if code, got, stderr := call(t, "", "--version"); code != 0 || got != want {
		t.Errorf("--version: exit %d, %q, want %q, %s", code, got, want, stderr)
	}
}

// Programs that read JSON also get errors as JSON.
func TestErrorsAsJSON(t *testing.T) {
	t.Chdir("testdata")
	for command, want := range map[string]string{
		"check -f missing -o json":                    `{"error":"stat missing: no such file or directory"}`,
		"matrix --port 80 -f missing -o json":         `{"error":"stat missing: no such file or directory"}`,
		"explain a/b --port 80 -f shop -o json":       `{"error":"name a source and a destination, SRC DST: got 1 argument"}`,
		"explain a/b shop/db --port 0 -f shop -ojson": `{"error":"port \"0\": must be in 1-65535"}`,
		"check -f missing":                            "",
	} {
		t.Run(command, func(t *testing.T) {
			code, stdout, stderr := call(t, "", command)
			var compact bytes.Buffer
			if err := json.Compact(&compact, []byte(stdout)); stdout != "" && err != nil {
				t.Errorf("%s: %v", command, err)
			}
			if code != 2 || compact.String() != want || !strings.HasPrefix(stderr, "error: ") {
				t.Errorf("%s: got %d\n%s%s", command, code, stdout, stderr)
			}
		})
	}
}

// --admin-policies=false leaves out administrators' policies, like the agents' default.
func TestAdminPoliciesFlag(t *testing.T) {
	t.Chdir("testdata")
	const connection = "explain monitoring/prometheus shop/db --port 5432 -f shop "
	const all = "  Selected by AdminNetworkPolicy/monitoring, shop/db, shop/default-deny, BaselineAdminNetworkPolicy/default.\n"
	if _, stdout, _ := call(t, "", connection+"-f admin.yaml"); !strings.Contains(stdout, all) {
		t.Errorf("want %s in\n%s", all, stdout)
	}

	_, without, _ := call(t, "", connection)
	if _, stdout, _ := call(t, "", connection+"-f admin.yaml --admin-policies=false"); stdout != without {
		t.Errorf("got\n%swant\n%s", stdout, without)
	}
}

func TestStandardInputIsRead(t *testing.T) {
	t.Chdir("testdata")
	cluster, err := os.ReadFile("shop/cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := call(t, string(cluster), "explain shop/web shop/db --port 5432 -f -"); code != 0 {
		t.Errorf("without policies: %d %s", code, stderr)
	}
	if code, _, stderr := call(t, string(cluster), "explain shop/web shop/db --port 5432 -f - -f shop/policies.yaml"); code != 1 {
		t.Errorf("with policies: %d %s", code, stderr)
	}
	if code, _, stderr := call(t, "kind: Pod\nodd", "check -f -"); code != 2 || !strings.HasPrefix(stderr, "error: -:") {
		t.Errorf("an invalid flag: %d %s", code, stderr)
	}
}

// Programs read this output, so not a byte may change.
func TestMatrixAsJSON(t *testing.T) {
	t.Chdir("testdata")
	for command, want := range map[string]string{
		"--port 80 --from shop/web --to shop/web --to 203.0.113.9": `{"port":"80","protocol":"TCP","pods":["203.0.113.9","shop/web"],"allowed":{"shop/web":{"203.0.113.9":true,"shop/web":true}}}` + "\n",
		"--port sql --from shop/web --from shop/api --to shop/db":  `{"port":"sql","protocol":"TCP","pods":["shop/api","shop/db","shop/web"],"allowed":{"shop/api":{"shop/db":true},"shop/web":{"shop/db":false}}}` + "\n",
		"--protocol icmp -n shop --to shop/db":                     `{"port":"","protocol":"ICMP","pods":["new namespace/new pod","outside","shop/api","shop/db","shop/new pod","shop/web"],"allowed":{"new namespace/new pod":{"shop/db":false},"outside":{"shop/db":false},"shop/api":{"shop/db":false},"shop/db":{"shop/db":true},"shop/new pod":{"shop/db":false},"shop/web":{"shop/db":false}}}` + "\n",
	} {
		t.Run(command, func(t *testing.T) {
			code, stdout, stderr := call(t, "", "matrix -f shop -o json "+command)
			if code != 0 || stdout != want {
				t.Errorf("got %d\n%s%swant\n%s", code, stdout, stderr, want)
			}
		})
	}
}

// An explanation in JSON has every field in full.
func TestExplanationAsJSON(t *testing.T) {
	t.Chdir("testdata")
	_, stdout, _ := call(t, "", "explain shop/web shop/db --port 5432 -o json -f shop/cluster.yaml -f faulty.yaml --feature-gates=EndPort=false")
	for _, want := range []string{
		`"allowed": false`, `"direction": "ingress"`, `"subject": "shop/db"`, `"node": "n2"`, `"name": "networkpolicy"`,
		`"field": "spec.ingress[0].from[0]"`, `"means": "pods with app=api of namespace shop"`, `"why": "shop/web has app=web"`,
		`"reason": "FeatureNotSupported"`,
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %s in\n%s", want, stdout)
		}
	}
}

// A node without host-network pods is compared by its address, a node with some by these
// pods. Domain names are not compared, and the output says so.
func TestDiffOfNodes(t *testing.T) {
	t.Chdir("testdata")
	code, stdout, stderr := call(t, "", "diff --port 10250 -f shop/cluster.yaml -f admin.yaml")
	const want = `TCP 10250:
  no longer allowed: shop/web -> monitoring/node-exporter, 192.168.0.2, 203.0.113.0/24
    by ClusterNetworkPolicy/egress

Compared: TCP 10250, between 5 pods and a new pod without labels in each of 2 namespaces, with 192.168.0.2 of nodes, and with addresses outside.
Not compared: what is allowed by domain names, which only agents know: ClusterNetworkPolicy/egress spec.egress[0]
`
	if code != 1 || stdout != want {
		t.Errorf("got %d %s\n%s", code, stderr, stdout)
	}
}

func TestDiffListsPodsOfOneCluster(t *testing.T) {
	t.Chdir("testdata")
	more := "apiVersion: v1\nkind: Pod\nmetadata: {namespace: shop, name: old}\nspec: {nodeName: n1}\nstatus: {podIP: 10.0.1.9}\n---\n"
	cluster, err := os.ReadFile("shop/cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for command, want := range map[string]string{
		"diff --replace -f - -f shop/cluster.yaml": ", with shop/old removed, ",
		"diff --replace -f shop/cluster.yaml -f -": ", with shop/old added, ",
	} {
		t.Run(command, func(t *testing.T) {
			code, stdout, stderr := call(t, more+string(cluster), command)
			if code != 1 || !strings.Contains(stdout, want) {
				t.Errorf("got %d\n%s%s", code, stdout, stderr)
			}
		})
	}
}

func TestMatrixListsPodsLeftOut(t *testing.T) {
	t.Chdir("testdata")
	ended := "apiVersion: v1\nkind: Pod\nmetadata: {namespace: shop, name: job}\nstatus: {phase: Succeeded}\n"
	code, stdout, stderr := call(t, ended, "matrix --port 80 -f shop -f -")
	if code != 0 || strings.Contains(stdout, "job") || stderr != "Left out: pod shop/job has ended (status.phase is Succeeded) and has no network\n" {
		t.Errorf("got %d\n%s%s", code, stdout, stderr)
	}
}
