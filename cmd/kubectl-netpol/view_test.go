package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// tests/view has the tests in a browser.

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

// get returns the answer to a request, which names host if that is not empty.
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

// Only who has the URL sees the page, and no other site that a browser shows.
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
		{"", "view -f testdata/shop --apply testdata/shop/cluster.yaml", "error: --apply=testdata/shop/cluster.yaml: no policy to apply\n"},
		{"", "view -f testdata/shop --apply testdata/none", "error: --apply=testdata/none: "},
		{"{}", "view -f - --apply -", "error: --apply=-: the standard input is that of --filename already\n"},
		{"", "view -f testdata/shop --by rack -o html", `error: "rack": rows and columns must be pod, workload or namespace`},
		{"", "view -f testdata/shop --port 70000 -o html", "70000"},
		{thousand, "view -f - -o html", "error: 250 workloads are too many to show at once, 40 are the most: show namespaces, those of one namespace, or those with some labels\n"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			code, stdout, stderr := call(t, tt.stdin, tt.args)
			if code != exitError || stdout != "" || !strings.Contains(stderr, tt.want) {
				t.Errorf("exit code %d, stdout %q, stderr %q; want %q", code, stdout, stderr, tt.want)
			}
		})
	}
}

// A template that ends in an error is an error, not half a page.
func TestHalfAPageIsNotServed(t *testing.T) {
	w := httptest.NewRecorder()
	(&pages{}).serve(w, "matrix", 1)
	if w.Code != http.StatusInternalServerError || strings.Contains(w.Body.String(), "<html") {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
}

// The page groups 2,000 pods by namespaces and workloads; as pods they are too many.
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
	for by, want := range map[string]int{"namespace": 20, "workload": 0, "pod": 0} {
		t.Run("by "+by, func(t *testing.T) {
			page := p.matrixPage(pageQuery{By: by, State: stateNow, Protocol: "TCP"}, false)
			if len(page.Rows) != want || (want == 0) != (page.Problem != "") {
				t.Errorf("%d rows, want %d: %s", len(page.Rows), want, page.Problem)
			}
		})
	}
	page := p.matrixPage(pageQuery{By: "workload", FromNamespace: "ns-03", State: stateNow, Protocol: "TCP", ToNamespace: "ns-04"}, false)
	if len(page.Rows) != 25 || len(page.Columns) != 25 || page.Problem != "" {
		t.Errorf("%d rows and %d columns, want 25 each: %s", len(page.Rows), len(page.Columns), page.Problem)
	}
}
