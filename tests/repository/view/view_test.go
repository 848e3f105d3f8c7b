// Package view tests the page of kubectl netpol view in a browser: Chromium without a
// window.
package view

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const (
	root = "../../.." // where the program runs

	shop    = "examples/online-shop"
	cluster = "cmd/kubectl-netpol/testdata/shop"
	changes = "cmd/kubectl-netpol/testdata/proposed"

	audited  = "examples/audit.yaml"
	pods     = "examples/cluster.yaml"
	recorded = "cmd/kubectl-netpol/testdata/flows.jsonl"
)

// timeout bounds each test. A browser starts slowly on a busy machine.
const timeout = 3 * time.Minute

var program string // the path of kubectl-netpol

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "netpol-view-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		program = filepath.Join(dir, "kubectl-netpol")
		build := exec.Command("go", "build", "-C", root+"/cmd/kubectl-netpol", "-o", program, ".")
		if output, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%v\n%s", err, output)
			return 1
		}
		end := startBrowser()
		defer end()
		if err := chromedp.Run(browser); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

// browser is shared by all tests.
var browser context.Context

// startBrowser starts the browser, which ends when the returned function is called.
func startBrowser() (end func()) {
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.NoSandbox, // which root has not
		chromedp.WSURLReadTimeout(timeout), chromedp.WindowSize(1720, 1100))
	allocator, endAllocator := chromedp.NewExecAllocator(context.Background(), options...)
	var endBrowser context.CancelFunc
	browser, endBrowser = chromedp.NewContext(allocator, chromedp.WithBrowserOption(chromedp.WithDialTimeout(timeout)))
	return func() {
		endBrowser()
		endAllocator()
	}
}

// newBrowser opens a tab of the browser, which is closed with the test.
func newBrowser(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, timeout)
	t.Cleanup(cancel)
	return ctx
}

// do runs actions in the browser.
func do(ctx context.Context, t *testing.T, actions ...chromedp.Action) {
	t.Helper()
	for i, action := range actions {
		if err := chromedp.Run(ctx, action); err != nil {
			t.Fatalf("action %d: %v", i, err)
		}
	}
}

// waitUntil waits until an expression is true, also in a page that is being loaded.
func waitUntil(expression string) chromedp.Action {
	return chromedp.ActionFunc(func(ctx context.Context) error {
		ticker := time.NewTicker(20 * time.Millisecond)
		defer ticker.Stop()
		for {
			var is bool
			err := chromedp.Evaluate(expression, &is).Do(ctx)
			if err == nil && is {
				return nil
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("%w until %s: %v", ctx.Err(), expression, err)
			case <-ticker.C:
			}
		}
	})
}

// waitFor waits until a page is loaded and shows an element.
func waitFor(selector string) chromedp.Action {
	return waitUntil(fmt.Sprintf(`document.readyState === "complete" && Boolean(document.querySelector(%q)?.checkVisibility())`, selector))
}

// with evaluates what is done with the element that a selector finds.
func with(selector, script string, result any) chromedp.Action {
	return chromedp.Evaluate(fmt.Sprintf(`((e) => %s)(document.querySelector(%q))`, script, selector), result)
}

// click clicks an element that nothing hides. It looks and clicks at once: an element can move
// between a look and the click of a mouse, which then hits another.
func click(selector string) chromedp.Action {
	return with(selector, `{
		e.scrollIntoView({block: "center", inline: "center"});
		const box = e.getBoundingClientRect(), hit = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
		if (!e.contains(hit)) throw new Error("what a click hits is " + hit?.outerHTML);
		hit.dispatchEvent(new MouseEvent("click", {bubbles: true, cancelable: true}));
	}`, nil)
}

func focus(selector string) chromedp.Action {
	return with(selector, `e.focus()`, nil)
}

func choose(selector, value string) chromedp.Action {
	return with(selector, fmt.Sprintf(`{ e.value = %q; }`, value), nil)
}

func text(selector string, result *string) chromedp.Action {
	return with(selector, `e.textContent`, result)
}

// serve starts the command and returns the URL of its page.
func serve(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, append([]string{"view"}, args...)...)
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	url, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		_ = cmd.Wait()
		t.Fatalf("%v: %s", err, &stderr)
	}
	return strings.TrimSpace(url)
}

// call runs the program and returns its output.
func call(t *testing.T, args ...string) string {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir = root
	cmd.Stderr = &stderr
	stdout, err := cmd.Output()
	if err != nil && cmd.ProcessState.ExitCode() != 1 {
		t.Fatalf("%v: %v: %s", args, err, &stderr)
	}
	return string(stdout)
}

// cell is a cell as the page shows it.
type cell struct{ From, To, Text, Class, Label string }

// readCells reads the cells that can be seen.
const readCells = `(() => {
	const columns = [...document.querySelectorAll("#matrix th.column")].map((c) => c.dataset.name);
	return [...document.querySelectorAll("#matrix tbody tr")].filter((row) => !row.hidden).flatMap((row) =>
		[...row.querySelectorAll("td")].map((td, i) => ({From: row.dataset.name, To: columns[i], Text: td.querySelector("a").innerText,
			Class: td.className, Label: td.querySelector("a").ariaLabel, hidden: td.hidden})).filter((c) => !c.hidden));
})()`

// cellsOf returns the cells of the page that the browser shows, as text by "from → to".
func cellsOf(ctx context.Context, t *testing.T) map[string]cell {
	t.Helper()
	var cells []cell
	do(ctx, t, chromedp.Evaluate(readCells, &cells))
	all := map[string]cell{}
	for _, c := range cells {
		all[c.From+" → "+c.To] = c
	}
	return all
}

// reached is what is reached in a cell: by all pairs of pods, and by some.
type reached struct{ Ports, Partly []string }

// matrixOf returns the cells of matrix -o json, by "from → to".
func matrixOf(t *testing.T, args ...string) map[string]reached {
	t.Helper()
	var matrix struct {
		From, To []string
		Reaches  map[string]map[string]reached
	}
	if err := json.Unmarshal([]byte(call(t, append([]string{"matrix", "-o", "json"}, args...)...)), &matrix); err != nil {
		t.Fatal(err)
	}
	all := map[string]reached{}
	for _, from := range matrix.From {
		for _, to := range matrix.To {
			all[from+" → "+to] = matrix.Reaches[from][to]
		}
	}
	return all
}

// ports takes the text of ports apart: "53,80/TCP 53/UDP" is three.
func ports(text string) []string {
	var all []string
	for _, part := range strings.Fields(text) {
		numbers, protocol, ok := strings.Cut(part, "/")
		if !ok {
			all = append(all, part)
			continue
		}
		for number := range strings.SplitSeq(numbers, ",") {
			all = append(all, number+"/"+protocol)
		}
	}
	return all
}

// reachedOf reads the texts of cells, which have the marks of changes before them, and what
// some reach behind "~".
func reachedOf(cells map[string]cell) map[string]reached {
	all := map[string]reached{}
	for name, c := range cells {
		every, partly, _ := strings.Cut(strings.Trim(c.Text, "·"), "~")
		all[name] = reached{ports(every), ports(partly)}
	}
	return all
}

// equateEmpty lets an empty list be equal to none.
var equateEmpty = cmpopts.EquateEmpty()

func TestCellsAreThoseOfTheMatrix(t *testing.T) {
	ctx := newBrowser(t)
	url := serve(t, "-f", shop)
	for _, tt := range []struct {
		query string
		args  []string
	}{
		{"", nil},
		{"?from-namespace=orders&to-namespace=orders", []string{"-n", "orders"}},
		{"?by=namespace", []string{"--by", "namespace"}},
		{"?by=pod", []string{"--by", "pod"}},
		{"?selector=app%3Dcart", []string{"-l", "app=cart"}},
	} {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			do(ctx, t, chromedp.Navigate(url+tt.query))
			want := matrixOf(t, append(tt.args, "-f", shop)...)
			if len(want) == 0 {
				t.Fatal("the matrix is empty")
			}
			if diff := cmp.Diff(want, reachedOf(cellsOf(ctx, t)), equateEmpty); diff != "" {
				t.Errorf("cells of the page (-matrix +page):\n%s", diff)
			}
		})
	}
}

func TestFind(t *testing.T) {
	ctx := newBrowser(t)
	do(ctx, t, chromedp.Navigate(serve(t, "-f", shop)), waitFor("#find"))
	all := len(cellsOf(ctx, t))
	do(ctx, t, focus("#find"), chromedp.KeyEvent("ORDERS/sts"))
	for name := range cellsOf(ctx, t) {
		if strings.Count(name, "orders/sts") != 2 {
			t.Errorf("%s is shown", name)
		}
	}
	if n := len(cellsOf(ctx, t)); n != 4 {
		t.Errorf("%d cells are shown, want 4", n)
	}
	do(ctx, t, focus("#find"), chromedp.KeyEvent(strings.Repeat(kb.Backspace, len("ORDERS/sts"))))
	if n := len(cellsOf(ctx, t)); n != all {
		t.Errorf("%d cells are shown, want all", n)
	}
}

// The matrix is one stop of the tab key; arrow keys move in it, Enter opens the reasons, and
// those are what explain prints.
func TestKeysAndReasons(t *testing.T) {
	ctx := newBrowser(t)
	do(ctx, t, chromedp.Navigate(serve(t, "-f", shop)), waitFor("#find"))
	var stops int
	do(ctx, t, chromedp.Evaluate(`[...document.querySelectorAll("#matrix a")].filter((a) => a.tabIndex === 0).length`, &stops))
	if stops != 1 {
		t.Errorf("the matrix has %d stops of the tab key, want 1", stops)
	}
	const from, to = "orders/deploy/order", "orders/sts/order-db"
	var rows, columns []string
	do(ctx, t,
		chromedp.Evaluate(`[...document.querySelectorAll("#matrix tbody tr")].map((r) => r.dataset.name)`, &rows),
		chromedp.Evaluate(`[...document.querySelectorAll("#matrix th.column")].map((c) => c.dataset.name)`, &columns),
		focus(`#matrix a[tabindex="0"]`))
	do(ctx, t,
		chromedp.KeyEvent(kb.End), chromedp.KeyEvent(kb.Home),
		chromedp.KeyEvent(strings.Repeat(kb.ArrowDown, slices.Index(rows, from))),
		chromedp.KeyEvent(strings.Repeat(kb.ArrowRight, slices.Index(columns, to))))
	var focused, title string
	do(ctx, t, chromedp.Evaluate(`document.activeElement.ariaLabel`, &focused))
	if want := from + " → " + to + ": 5432/TCP"; focused != want {
		t.Fatalf("the focus is on %q, want %q", focused, want)
	}
	var reasons []string
	do(ctx, t, chromedp.KeyEvent(kb.Enter), waitFor("pre"), text("h1", &title),
		chromedp.Evaluate(`[...document.querySelectorAll("pre")].map((p) => p.textContent)`, &reasons))
	if title != from+" → "+to {
		t.Errorf("the page is about %q", title)
	}
	if want := call(t, "explain", from, to, "--port", "5432", "-f", shop); len(reasons) != 2 || reasons[0] != want {
		t.Errorf("reasons (-explain +page):\n%s", cmp.Diff([]string{want}, reasons))
	}
}

// What changes is marked: a cell has less or more ports than before.
func TestChanges(t *testing.T) {
	ctx := newBrowser(t)
	url := serve(t, "-f", cluster, "--apply", changes)
	at := func(state string) map[string]cell {
		do(ctx, t, chromedp.Navigate(url+"?state="+state))
		return cellsOf(ctx, t)
	}
	before, after, marked := at("before"), at("after"), at("changes")
	if diff := cmp.Diff(matrixOf(t, "-f", cluster), reachedOf(before), equateEmpty); diff != "" {
		t.Errorf("cells before (-matrix +page):\n%s", diff)
	}
	if diff := cmp.Diff(reachedOf(after), reachedOf(marked)); diff != "" {
		t.Errorf("cells with changes are not those after (-after +changes):\n%s", diff)
	}
	count := map[string]int{}
	for name, c := range marked {
		mark := ""
		for _, m := range []string{"gained", "lost"} {
			if strings.Contains(c.Class, m) {
				mark = m
			}
		}
		count[mark]++
		if same := before[name].Text == after[name].Text; same != (mark == "") {
			t.Errorf("%s: %q before, %q after, marked %q", name, before[name].Text, after[name].Text, mark)
		}
		if mark != "" && !strings.Contains(c.Label, "than before") {
			t.Errorf("%s: a screen reader says %q", name, c.Label)
		}
	}
	if count["gained"] == 0 || count["lost"] == 0 || count[""] == 0 {
		t.Errorf("cells by mark: %v, want some of each", count)
	}
}

// One file has everything: the browser asks for nothing else.
func TestOneFile(t *testing.T) {
	ctx := newBrowser(t)
	path := filepath.Join(t.TempDir(), "shop.html")
	if err := os.WriteFile(path, []byte(call(t, "view", "-o", "html", "-f", shop)), 0o600); err != nil {
		t.Fatal(err)
	}
	var requests []string
	chromedp.ListenTarget(ctx, func(event any) {
		if request, ok := event.(*network.EventRequestWillBeSent); ok {
			requests = append(requests, request.Request.URL)
		}
	})
	var shown, policy string
	do(ctx, t, network.Enable(), chromedp.Navigate("file://"+path), waitFor("#find"), waitFor("#graph .node"),
		chromedp.Evaluate(`document.querySelector('meta[http-equiv="Content-Security-Policy"]').content`, &policy))
	if want := []string{"file://" + path}; !slices.Equal(requests, want) {
		t.Errorf("requests are %v, want %v", requests, want)
	}
	if !strings.HasPrefix(policy, "default-src 'none';") || strings.Contains(policy, "unsafe") {
		t.Errorf("the content security policy is %q", policy)
	}
	if diff := cmp.Diff(matrixOf(t, "-f", shop), reachedOf(cellsOf(ctx, t)), equateEmpty); diff != "" {
		t.Errorf("cells of the page (-matrix +page):\n%s", diff)
	}
	do(ctx, t, click(`#matrix a[aria-label^="orders/deploy/order → orders/sts/order-db"]`),
		waitFor(".explanation:target pre"), text(".explanation:target pre", &shown))
	if want := call(t, "explain", "orders/deploy/order", "orders/sts/order-db", "--port", "5432", "-f", shop); shown != want {
		t.Errorf("reasons (-explain +page):\n%s", cmp.Diff(want, shown))
	}
}

// contrasts returns the least contrast of text and background in the cells of each class, as
// WCAG 2 defines it.
const contrasts = `(() => {
	const channels = (color) => color.match(/[\d.]+/g).map(Number);
	const luminance = (color) => {
		const [r, g, b] = channels(color).map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
		return 0.2126 * r + 0.7152 * g + 0.0722 * b;
	};
	const background = (e) => {
		const color = getComputedStyle(e).backgroundColor, [, , , alpha] = channels(color);
		return alpha === 0 ? background(e.parentElement) : color;
	};
	const least = {};
	for (const a of document.querySelectorAll("#matrix td a")) {
		const [low, high] = [luminance(getComputedStyle(a).color), luminance(background(a))].sort((x, y) => x - y);
		const kind = a.parentElement.className.split(" ")[0], ratio = (high + 0.05) / (low + 0.05);
		least[kind] = Math.min(least[kind] ?? ratio, ratio);
	}
	return least;
})()`

func TestContrast(t *testing.T) {
	ctx := newBrowser(t)
	do(ctx, t, chromedp.Navigate(serve(t, "-f", shop)))
	backgrounds := map[string]bool{}
	for _, scheme := range []string{"light", "dark"} {
		t.Run(scheme, func(t *testing.T) {
			var least map[string]float64
			var background string
			do(ctx, t,
				emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}),
				chromedp.Evaluate(contrasts, &least), chromedp.Evaluate(`getComputedStyle(document.body).backgroundColor`, &background))
			for class, ratio := range least {
				if ratio < 4.5 { // level AA for text
					t.Errorf("cells of class %s have a contrast of %.1f", class, ratio)
				}
			}
			if len(least) < 3 {
				t.Errorf("only %v were seen", least)
			}
			backgrounds[background] = true
		})
	}
	if len(backgrounds) != 2 {
		t.Errorf("light and dark have the same background: %v", backgrounds)
	}
}

// As if audited policies were enforced, the page shows what the matrix says of policies without
// the annotation, and marks what that changes.
func TestAuditedPoliciesAsIfEnforced(t *testing.T) {
	ctx := newBrowser(t)
	text, err := os.ReadFile(filepath.Join(root, audited))
	if err != nil {
		t.Fatal(err)
	}
	enforced := filepath.Join(t.TempDir(), "enforced.yaml")
	if err := os.WriteFile(enforced, bytes.ReplaceAll(text, []byte("enforcement: audit"), []byte("enforcement: enforce")), 0o600); err != nil {
		t.Fatal(err)
	}
	do(ctx, t, chromedp.Navigate(serve(t, "-f", audited, "-f", pods)))
	before := cellsOf(ctx, t)
	if diff := cmp.Diff(matrixOf(t, "-f", audited, "-f", pods), reachedOf(before), equateEmpty); diff != "" {
		t.Errorf("cells as they are (-matrix +page):\n%s", diff)
	}
	do(ctx, t, choose(`select[name="audited"]`, "enforced"), click("form button"), waitFor(".key.lost"))
	after := cellsOf(ctx, t)
	if diff := cmp.Diff(matrixOf(t, "-f", enforced, "-f", pods), reachedOf(after), equateEmpty); diff != "" {
		t.Errorf("cells as if enforced (-matrix +page):\n%s", diff)
	}
	lost := 0
	for name, c := range after {
		if strings.Contains(c.Class, "lost") {
			lost++
		}
		if (before[name].Text == c.Text) != !strings.Contains(c.Label, "less than as they are") {
			t.Errorf("%s: %q as it is, %q enforced, a screen reader says %q", name, before[name].Text, c.Text, c.Label)
		}
	}
	if lost == 0 {
		t.Error("nothing is marked as lost")
	}
}

// record is what the page shows of a flow.
type record struct {
	Type                string
	Node                string
	Source, Destination struct{ Namespace, Pod, Address string }
	Protocol            string
	Port, Count         int
	Verdict             string
	Audit               *struct{ Verdict string }
}

func (r *record) cell() string {
	return r.Source.Namespace + "/" + r.Source.Pod + " → " + r.Destination.Namespace + "/" + r.Destination.Pod
}

// mark is what the cell of the flow shows of it.
func (r *record) mark() string {
	switch {
	case r.Verdict == "deny":
		return fmt.Sprintf("✗%d", r.Count)
	case r.Audit != nil:
		return fmt.Sprintf("?%d", r.Count)
	}
	return fmt.Sprintf("▸%d", r.Count)
}

// Flows are those of the records that "flows -o json" prints. They are read again without
// moving the focus, unless that is paused.
func TestFlows(t *testing.T) {
	ctx := newBrowser(t)
	lines, err := os.ReadFile(filepath.Join(root, recorded))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "flows.jsonl")
	write := func(text []byte) {
		t.Helper()
		if err := os.WriteFile(file+".new", text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write(lines)
	check := func(text []byte) {
		t.Helper()
		var rows [][]string
		var marks map[string]string
		do(ctx, t,
			chromedp.Evaluate(`[...document.querySelectorAll("#flows tbody tr")].map((r) => [...r.cells].slice(0, 7).filter((_, i) => i !== 5).map((c) => c.textContent))`, &rows),
			chromedp.Evaluate(`Object.fromEntries([...document.querySelectorAll("#matrix tbody tr")].flatMap((row) => [...row.querySelectorAll("td")].map((td, i) =>
				[row.dataset.name + " → " + document.querySelectorAll("#matrix th.column")[i].dataset.name, [...td.querySelectorAll("small")].map((s) => s.textContent).join("")])).filter((c) => c[1]))`, &marks))
		var want [][]string
		wantMarks := map[string]string{}
		decoder := json.NewDecoder(bytes.NewReader(text))
		name := func(namespace, pod, address string) string {
			if pod == "" {
				return address
			}
			return namespace + "/" + pod
		}
		for decoder.More() {
			var r record
			if err := decoder.Decode(&r); err != nil {
				t.Fatal(err)
			}
			if r.Type != "flow" {
				continue
			}
			from, to := name(r.Source.Namespace, r.Source.Pod, r.Source.Address), name(r.Destination.Namespace, r.Destination.Pod, r.Destination.Address)
			want = append(want, []string{r.Node, from, to, fmt.Sprintf("%s %d", r.Protocol, r.Port), r.Verdict, fmt.Sprint(r.Count)})
			if r.Source.Pod != "" && r.Destination.Pod != "" {
				wantMarks[r.cell()] += r.mark()
			}
		}
		sorted := cmpopts.SortSlices(func(a, b []string) bool { return fmt.Sprint(a) < fmt.Sprint(b) })
		if diff := cmp.Diff(want, rows, sorted, cmpopts.EquateEmpty()); diff != "" || len(want) == 0 {
			t.Errorf("%d flows (-records +page):\n%s", len(want), diff)
		}
		if diff := cmp.Diff(wantMarks, marks); diff != "" {
			t.Errorf("marks of cells (-records +page):\n%s", diff)
		}
	}
	url := serve(t, "-f", cluster, "--records", file)
	do(ctx, t, chromedp.Navigate(url+"?by=pod"), waitUntil(`!document.querySelector("#flows")`),
		choose(`select[name="flows"]`, "shown"), click("form button"), waitFor("#pause"))
	check(lines)

	const denied = `{"type":"flow","node":"n2","source":{"namespace":"monitoring","pod":"prometheus","address":"10.0.1.2"},"destination":{"namespace":"shop","pod":"db","address":"10.0.2.2"},"protocol":"TCP","port":9187,"verdict":"deny","direction":"ingress","tier":"networkpolicy","reason":"isolated","policy":{"kind":"NetworkPolicy","namespace":"shop","name":"default-deny"},"count":7,"first":"2026-01-02T03:04:04Z","last":"2026-01-02T03:04:04Z"}` + "\n"
	more := append(bytes.Clone(lines), denied...)
	const link = `#matrix a[aria-label^="monitoring/prometheus → shop/db"]`
	var focused string
	do(ctx, t, focus(link))
	write(more)
	do(ctx, t, waitFor("#matrix small.denied"), chromedp.Evaluate("document.activeElement.ariaLabel", &focused))
	check(more)
	if !strings.HasPrefix(focused, "monitoring/prometheus → shop/db") || !strings.HasSuffix(focused, "; packets denied: 7") {
		t.Errorf("the focus is on %q", focused)
	}
	write([]byte("{}\n")) // no record
	do(ctx, t, waitFor(`#flows [role="alert"]`))
	var pressed string
	do(ctx, t, click("#pause"), chromedp.Evaluate(`document.getElementById("pause").ariaPressed`, &pressed))
	if pressed != "true" {
		t.Errorf("the button to pause is pressed: %s", pressed)
	}
}

// The addresses outside are seen without scrolling, and on paper nothing is cut and lists are open.
func TestOutsideAndPaper(t *testing.T) {
	for _, folder := range []string{cluster, shop} {
		t.Run(folder, func(t *testing.T) {
			ctx := newBrowser(t)
			do(ctx, t, emulation.SetDeviceMetricsOverride(1440, 900, 1, false), chromedp.Navigate(serve(t, "-f", folder)), waitFor("#matrix"))
			var seen, open, closed bool
			var cut string
			do(ctx, t, with("th.column[data-name=outside]", `e.getBoundingClientRect().right <= 1440`, &seen),
				chromedp.Evaluate(`dispatchEvent(new Event("beforeprint"))`, nil), emulation.SetEmulatedMedia().WithMedia("print"), emulation.SetDeviceMetricsOverride(1047, 718, 1, false),
				chromedp.Evaluate(`[...document.querySelectorAll("#summary > details")].every((d) => d.open)`, &open),
				chromedp.Evaluate(`[...document.querySelectorAll(".scroll")].map((s) => s.firstElementChild.getBoundingClientRect().width).filter((w) => w > 1047).join(" ")`, &cut),
				chromedp.Evaluate(`dispatchEvent(new Event("afterprint"))`, nil), emulation.SetEmulatedMedia(),
				chromedp.Evaluate(`[...document.querySelectorAll("#summary > details")].every((d) => !d.open)`, &closed))
			if !seen || !open || cut != "" || !closed {
				t.Errorf("outside seen %v, lists open %v, too wide %q, lists closed after %v", seen, open, cut, closed)
			}
		})
	}
}
