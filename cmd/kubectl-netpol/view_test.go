package main

import (
	"context"
	"errors"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// tests/repository/view tests the page in a browser.

// startView serves the page of a cluster and returns its URL.
func startView(t *testing.T, args string) *url.URL {
	t.Helper()
	r, w := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int)
	go func() {
		defer close(ended)
		code := run(ctx, strings.Fields("view "+args), strings.NewReader(""), w, io.Discard)
		w.CloseWithError(errors.New("the command has ended"))
		ended <- code
	}()
	line := make([]byte, 200)
	n, err := r.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if code := <-ended; code != exitYes {
			t.Errorf("exit code %d", code)
		}
	})
	u, err := url.Parse(strings.TrimSpace(string(line[:n])))
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// get returns the response to a request. The request names host if that is not empty.
func get(t *testing.T, u *url.URL, host string) (status int, header http.Header, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, u.String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Host = host
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header, string(content)
}

// Only a browser that knows the URL sees the page, not another site in the same browser.
func TestViewIsForItsURLAlone(t *testing.T) {
	u := startView(t, "-f testdata/shop")
	token := strings.Trim(u.Path, "/")
	if len(token) < 20 || u.Hostname() != "127.0.0.1" {
		t.Errorf("the URL is %s, want one with a token on the loopback address", u)
	}
	for _, tt := range []struct {
		name, path, host string
		want             int
	}{
		{"the URL", "/" + token + "/", "", http.StatusOK},
		{"its parts", "/" + token + "/style.css", "", http.StatusOK},
		{"no token", "/", "", http.StatusNotFound},
		{"no token before a part", "/style.css", "", http.StatusNotFound},
		{"another token", "/" + strings.Repeat("A", len(token)) + "/", "", http.StatusNotFound},
		{"a part of the token", "/" + token[:len(token)-1] + "/", "", http.StatusNotFound},
		{"a name that leads here", "/" + token + "/", "attacker.example:" + u.Port(), http.StatusNotFound},
		{"a file of the program", "/" + token + "/page.html", "", http.StatusNotFound},
	} {
		t.Run(tt.name, func(t *testing.T) {
			at := *u
			at.Path = tt.path
			status, header, _ := get(t, &at, tt.host)
			if status != tt.want {
				t.Errorf("status %d, want %d", status, tt.want)
			}
			if policy := header.Get("Content-Security-Policy"); !strings.HasPrefix(policy, "default-src 'none';") {
				t.Errorf("Content-Security-Policy is %q", policy)
			}
		})
	}
}

func TestViewSaysWhatIsWrong(t *testing.T) {
	u := startView(t, "-f testdata/shop --apply testdata/proposed")
	for query, want := range map[string]string{
		"?by=node":                                         "&#34;node&#34;: rows and columns must be pod, workload or namespace",
		"?port=70000":                                      "70000",
		"?port=80&protocol=GRE":                            "GRE",
		"?selector=a%3D%3D%3Db":                            "labels &#34;a===b&#34;",
		"?selector=app%3Dnone":                             "no pods to show: no pod there has an address and the labels app=none",
		"?state=tomorrow":                                  "state &#34;tomorrow&#34;: must be one of before, after, changes",
		"?from-namespace=%3Cscript%3E":                     "no pods to show",
		"cell?from=shop/web&to=shop/none&by=workload":      "workload &#34;shop/none&#34; does not exist or has no pod with an address",
		"cell?from=%3Cscript%3E&to=x&by=workload":          "&lt;script&gt;",
		"cell?from=shop/web&to=shop/db&by=workload&port=0": "0",
	} {
		t.Run(query, func(t *testing.T) {
			at, err := u.Parse(query)
			if err != nil {
				t.Fatal(err)
			}
			status, _, body := get(t, at, "")
			if status != http.StatusOK || !strings.Contains(body, `role="alert"`) || !strings.Contains(body, want) || strings.Contains(body, "<script>") {
				t.Errorf("status %d, want 200 and %q:\n%s", status, want, body)
			}
		})
	}
}

func TestViewErrors(t *testing.T) {
	thousand := replicated(1000, 10)
	for _, tt := range []struct{ stdin, args, want string }{
		{"", "view -o pdf -f testdata/shop", "error: --output=pdf: must be one of page, html\n"},
		{"", "view -f testdata/shop --apply testdata/none", "error: --apply=testdata/none: "},
		{"{}", "view -f - --apply -", "error: --apply=-: the standard input is that of --filename already\n"},
		{"", "view -f testdata/shop --by rack -o html", `error: "rack": rows and columns must be pod, workload or namespace`},
		{"", "view -f testdata/shop --port 70000 -o html", "70000"},
		{thousand, "view -f - -o html --by workload", "error: 250 workloads are too many to show at once, 200 are the most: show namespaces, those of one namespace, or those with some labels\n"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			code, stdout, stderr := call(t, tt.stdin, tt.args)
			if code != exitError || stdout != "" || !strings.Contains(stderr, tt.want) {
				t.Errorf("exit code %d, stdout %q, stderr %q; want %q", code, stdout, stderr, tt.want)
			}
		})
	}
}

// Gains and losses of a cell are apart, and one file marks them and names both inputs.
func TestViewMarksChanges(t *testing.T) {
	policy := func(name, port string) string {
		return "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {namespace: shop, name: " + name + "}\nspec:\n  podSelector: {matchLabels: {app: db}}\n" +
			"  ingress: [{from: [{podSelector: {matchLabels: {app: web}}}], ports: [" + port + "]}]\n---\n"
	}
	pod := func(name, labels, ip string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: {namespace: shop, name: " + name + ", labels: {" + labels + "}, ownerReferences: [{apiVersion: apps/v1, kind: StatefulSet, name: " + name[:len(name)-1] + ", uid: a, controller: true}]}\nspec: {nodeName: n1}\nstatus: {phase: Running, podIP: " + ip + "}\n---\n"
	}
	cluster := pod("web1", "app: web, old: a", "10.0.0.1") + pod("web2", "app: web", "10.0.0.2") + pod("db1", "app: db", "10.0.0.3") + policy("db", "{port: 7070}, {port: 443}")
	const marks = `<small class="gained" aria-hidden="true">+8000/TCP</small><small class="lost" aria-hidden="true">−7070/TCP</small>`
	for name, tc := range map[string]struct{ changes, flags, want, not string }{
		"a port moves":          {policy("db", "{port: 8000}, {port: 443}"), "", `443,8000/TCP</a>` + marks, ""},
		"for a screen reader":   {policy("db", "{port: 8000}, {port: 443}"), "", `shop/sts/web → shop/sts/db: 443,8000/TCP; 8000/TCP more than before; 7070/TCP less than before"`, ""},
		"one port":              {policy("db", "{port: 8000}"), " --port 7070", `<small class="lost" aria-hidden="true">−TCP 7070</small>`, "+TCP"},
		"only gained":           {policy("more", "{port: 8000}"), "", `<small class="gained" aria-hidden="true">+8000/TCP</small></td>`, "−8000"},
		"only lost":             {policy("db", "{port: 443}"), "", `<small class="lost" aria-hidden="true">−7070/TCP</small></td>`, "+443"},
		"of some of the pods":   {strings.Replace(policy("db", "{port: 7070}, {port: 443}"), "app: web}", "old: a}", 1), "", `<small class="lost" aria-hidden="true">−~443,7070/TCP</small>`, ""},
		"a new workload":        {strings.ReplaceAll(newWorkload, "cache", "extra"), "", `shop/deploy/extra → shop/sts/web: all; all more than before`, "all less"},
		"a new one, and itself": {strings.ReplaceAll(newWorkload, "cache", "extra"), "", `shop/deploy/extra → shop/deploy/extra: all; all more than before`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			file := t.TempDir() + "/changes.yaml"
			if err := os.WriteFile(file, []byte(tc.changes), 0o600); err != nil {
				t.Fatal(err)
			}
			code, stdout, stderr := call(t, cluster, "view -o html -f - --apply "+file+tc.flags)
			stdout = html.UnescapeString(stdout)
			if code != 0 || !strings.Contains(stdout, tc.want) || tc.not != "" && strings.Contains(stdout, tc.not) {
				t.Errorf("no %s, or %s: %d %s\n%s", tc.want, tc.not, code, stderr, stdout[strings.Index(stdout, "<body>"):])
			}
			if !strings.Contains(stdout, "Read from - at ") || !strings.Contains(stdout, " applied.") || !strings.Contains(stdout, file) {
				t.Errorf("the page does not name both inputs:\n%s", stdout[strings.Index(stdout, "<body>"):][:400])
			}
		})
	}
}

// A template that fails gives an error rather than half a page.
func TestHalfAPageIsNotServed(t *testing.T) {
	w := httptest.NewRecorder()
	(&pages{}).serve(w, "matrix", 1)
	if w.Code != http.StatusInternalServerError || strings.Contains(w.Body.String(), "<html") {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
}

// The page groups 2,000 pods by namespaces and workloads; as single pods they are too many.
func TestViewOfManyPods(t *testing.T) {
	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())
	cmd.SetIn(strings.NewReader(replicated(2000, 20)))
	cmd.SetErr(io.Discard)
	o := &options{files: []string{"-"}, notes: io.Discard}
	o.addFlags(cmd.Flags())
	o.files = []string{"-"}
	p, err := (&viewOptions{agentOptions: agentOptions{options: o}}).pages(cmd)
	if err != nil {
		t.Fatal(err)
	}
	for grouping, want := range map[string]int{"": 22, "namespace": 22, "workload": 0, "pod": 0} { // with a new namespace and outside
		t.Run("by "+grouping, func(t *testing.T) {
			page := p.matrixPage(pageQuery{By: grouping, State: stateNow, Protocol: "TCP"}, false)
			if len(page.Rows) != want || (want == 0) != (page.Problem != "") || want > 0 && page.Graph.Unit != "namespaces" {
				t.Errorf("%d rows, want %d, and a graph of %s: %s", len(page.Rows), want, page.Graph.Unit, page.Problem)
			}
		})
	}

	page := p.matrixPage(pageQuery{By: "workload", FromNamespace: "ns-03", State: stateNow, Protocol: "TCP", ToNamespace: "ns-04"}, false)
	const notThere = 3 // a new pod here and in a new namespace, and outside
	if len(page.Rows) != 25+notThere || len(page.Columns) != 25+notThere || page.Problem != "" {
		t.Errorf("%d rows and %d columns, want 28 each: %s", len(page.Rows), len(page.Columns), page.Problem)
	}
}
