package main

import (
	"encoding/json"
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// expectations returns a file of expectations for the manifests in testdata/shop.
func expectations(items ...string) string {
	return "apiVersion: kube-network-policies.x-k8s.io/v1alpha1\nkind: Expectations\nexpectations:\n- {" + strings.Join(items, "}\n- {") + "}\n"
}

const (
	holds  = "from: shop/api, to: shop/db, port: 5432, expect: allow"
	broken = "from: shop/web, to: shop/db, port: 5432, expect: allow, why: 'it, and: 100%'"
)

func TestAssertExitCodes(t *testing.T) {
	t.Chdir("testdata")
	for _, tc := range []struct {
		name, stdin, command string
		code                 int
		stdout, stderr       string
	}{
		{"all hold", expectations(holds), "assert - -f shop", 0, "1 expectation about 1 connection: all hold\n", ""},
		{"one does not", expectations(holds, broken), "assert - -f shop", 1, "2 expectations about 2 connections: 1 does not hold\n", ""},
		{"two do not", expectations(broken, broken), "assert - -f shop", 1, "2 expectations about 2 connections: 2 do not hold\n", ""},
		{"the reason", expectations(broken), "assert - -f shop", 1, "FAIL  shop/web -> shop/db, TCP 5432: allowed\n      -:4\n      why: it, and: 100%\n" +
			"      shop/web -> shop/db is denied: ingress of shop/db: NetworkPolicies isolate the pod and none of their rules matches: shop/db, shop/default-deny\n", ""},
		{"several files", expectations(holds), "assert - intent.yaml -f shop", 0, "5 expectations", ""},
		{"no file", "", "assert -f shop", 2, "", "name at least one file of expectations as an argument; -f names manifests"},
		{"no such file", "", "assert missing.yaml -f shop", 2, "", "missing.yaml: no such file"},
		{"all faults", expectations("expect: deny"), "assert missing.yaml - -f shop", 2, "", "-:4: expectations[0].from: is missing"},
		{"no such manifests", expectations(holds), "assert - -f missing", 2, "", "missing: no such file"},
		{"a pod that does not exist", expectations("from: shop/wbe, to: shop/db, port: 1, expect: deny"), "assert - -f shop", 2, "", `-:4: expectations[0].from: no pod "shop/wbe"`},
		{"a workload that does not exist", expectations("from: shop/sts/web, to: shop/db, port: 1, expect: deny"), "assert - -f shop", 2, "", "-:4: expectations[0].from: no pod of sts/web in namespace shop; there are those of"},
		{"a workload by its name", expectations("from: {namespace: shop, except: [shop/api]}, to: shop/db, port: 5432, expect: deny"), "assert - -f shop", 0, "all hold", ""},
		{"another output", expectations(holds), "assert - -f shop -o yaml", 2, "", "--output=yaml: must be one of text, json, junit, github"},
		{"one standard input", expectations(holds), "assert - -f -", 2, "", "the standard input can be read once"},
		{"domain names", expectations(holds), "assert - -f shop -f admin.yaml", 0, "all hold", "Not known: what is allowed by domain names"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, stdout, stderr := call(t, tc.stdin, tc.command)
			if code != tc.code || !strings.Contains(stdout, tc.stdout) || !strings.Contains(stderr, tc.stderr) || (code == 2) != (stdout == "") {
				t.Errorf("got %d, want %d\n%s%s", code, tc.code, stdout, stderr)
			}
		})
	}
}

func TestAssertJSON(t *testing.T) {
	t.Chdir("testdata")
	code, stdout, stderr := call(t, expectations(holds, broken), "assert - -f shop -o json")
	var got assertJSON
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 1 {
		t.Fatalf("got %d, %v\n%s%s", code, err, stdout, stderr)
	}
	if got.Holds || len(got.Expectations) != 2 || !got.Expectations[0].Holds || got.Expectations[0].Connections != 1 {
		t.Errorf("got %+v", got)
	}

	e := got.Expectations[1]
	if e.Holds || e.File != "-" || e.Line != 5 || e.Expect != "allow" || e.Failed != 1 || len(e.Failures) != 1 || e.Failures[0].From != "shop/web" {
		t.Errorf("got %+v", e)
	}
}

func TestAssertJUnit(t *testing.T) {
	t.Chdir("testdata")
	code, stdout, stderr := call(t, expectations(holds, broken), "assert - -f shop -o junit")
	var got struct {
		Suites []struct {
			Tests    int `xml:"tests,attr"`
			Failures int `xml:"failures,attr"`
			Cases    []struct {
				Name    string `xml:"name,attr"`
				Failure string `xml:"failure"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal([]byte(stdout), &got); err != nil || code != 1 {
		t.Fatalf("got %d, %v\n%s%s", code, err, stdout, stderr)
	}

	s := got.Suites[0]
	if s.Tests != 2 || s.Failures != 1 || s.Cases[1].Name != "shop/web -> shop/db, TCP 5432: allowed" || !strings.HasSuffix(s.Cases[1].Failure, "\nwhy it must be allowed: it, and: 100%") {
		t.Errorf("got %+v", got)
	}
}

func TestAssertGitHub(t *testing.T) {
	t.Chdir("testdata")
	code, stdout, _ := call(t, expectations(holds, broken), "assert - -f shop -o github")
	want := "::error file=-,line=5,title=shop/web -> shop/db%2C TCP 5432%3A allowed does not hold::" +
		"shop/web -> shop/db is denied: ingress of shop/db: NetworkPolicies isolate the pod and none of their rules matches: shop/db, shop/default-deny" +
		"%0Awhy it must be allowed: it, and: 100%25\n2 expectations about 2 connections: 1 does not hold\n"
	if code != 1 || stdout != want {
		t.Errorf("got %d\n%s\nwant\n%s", code, stdout, want)
	}
}

// The answer for a live cluster is the same as for its manifests.
func TestAssertReadsTheLiveCluster(t *testing.T) {
	t.Chdir("testdata")
	s := server(t, everywhere, "shop")
	code, live, stderr := call(t, "", "assert intent.yaml --context shop --kubeconfig "+kubeconfig(t, s.URL))
	if _, files, _ := call(t, "", "assert intent.yaml -f shop"); code != 0 || live != files {
		t.Errorf("got %d\n%s%swant\n%s", code, live, stderr, files)
	}
}

// The documented file of expectations is the one that produces the documented outputs.
func TestDocumentedExpectations(t *testing.T) {
	doc, err := os.ReadFile("../../docs/kubectl-netpol.md")
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(filepath.Join("testdata", "intent.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(doc), "```yaml\n"+string(file)+"```\n") {
		t.Error("docs/kubectl-netpol.md does not have testdata/intent.yaml")
	}
}
