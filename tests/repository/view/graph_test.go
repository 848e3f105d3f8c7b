package view

import (
	"bytes"
	"cmp"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	gocmp "github.com/google/go-cmp/cmp"
)

// estate writes manifests of namespaces with ten workloads each, most of which accept only what
// they need, and returns their path.
func estate(t *testing.T, workloads int) string {
	t.Helper()
	const perNamespace = 10
	var out strings.Builder
	for k := range workloads / perNamespace {
		ns := fmt.Sprintf("team-%02d", k)
		parent := fmt.Sprintf("team-%02d", k/2)
		fmt.Fprintf(&out, "apiVersion: v1\nkind: Namespace\nmetadata: {name: %s, labels: {team: %[1]s}}\n---\n", ns)
		for _, app := range []string{"gateway", "web", "api", "orders", "billing", "search", "worker", "mailer", "cache", "db"} {
			fmt.Fprintf(&out, "apiVersion: apps/v1\nkind: Deployment\nmetadata: {namespace: %s, name: %s}\nspec:\n  selector: {matchLabels: {app: %[2]s}}\n"+
				"  template: {metadata: {labels: {app: %[2]s}}, spec: {containers: [{name: c, image: i}]}}\n---\n", ns, app)
		}
		policy := func(name, spec string) {
			fmt.Fprintf(&out, "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {namespace: %s, name: %s}\nspec: {policyTypes: [Ingress], %s}\n---\n", ns, name, spec)
		}
		policy("closed", "podSelector: {matchExpressions: [{key: app, operator: NotIn, values: [mailer]}]}")
		for _, rule := range []struct{ app, peers, port string }{
			{"gateway", "", "443"},
			{"web", "podSelector: {matchLabels: {app: gateway}}", "8080"},
			{"api", "podSelector: {matchExpressions: [{key: app, operator: In, values: [web, gateway]}]}", "8080"},
			{"orders", "podSelector: {matchLabels: {app: api}}", "9000"},
			{"billing", "namespaceSelector: {matchLabels: {team: " + parent + "}}, podSelector: {matchLabels: {app: orders}}", "9000"},
			{"search", "podSelector: {matchExpressions: [{key: app, operator: In, values: [web, api]}]}", "9200"},
			{"cache", "podSelector: {matchExpressions: [{key: app, operator: In, values: [web, api, orders]}]}", "6379"},
			{"db", "podSelector: {matchExpressions: [{key: app, operator: In, values: [orders, billing, worker]}]}", "5432"},
		} {
			from := ""
			if rule.peers != "" {
				from = "from: [{" + rule.peers + "}], "
			}
			policy(rule.app, "podSelector: {matchLabels: {app: "+rule.app+"}}, ingress: [{"+from+"ports: [{port: "+rule.port+"}]}]")
		}
	}
	path := filepath.Join(t.TempDir(), "estate.yaml")
	if err := os.WriteFile(path, []byte(out.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// writePage writes the page as one file and returns its URL.
func writePage(t *testing.T, args ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(path, []byte(call(t, append([]string{"view", "-o", "html"}, args...)...)), 0o600); err != nil {
		t.Fatal(err)
	}
	return "file://" + path
}

// arrow is an arrow of the graph.
type arrow struct{ From, To, Text, Class string }

// readArrows reads the arrows with the names of workloads.
const readArrows = `(() => {
	const names = Object.fromEntries([...document.querySelectorAll("#graph .node")].map((n) => [n.dataset.id, n.dataset.name ?? n.dataset.group]));
	return [...document.querySelectorAll("#graph .edge")].map((e) => ({From: names[e.dataset.from], To: names[e.dataset.to],
		Text: [...e.querySelectorAll("text")].map((t) => t.textContent).join(" "), Class: e.getAttribute("class")}));
})()`

func arrowsOf(t *testing.T, run func(...chromedp.Action)) []arrow {
	t.Helper()
	var arrows []arrow
	run(chromedp.Evaluate(readArrows, &arrows))
	return arrows
}

// With all arrows, the graph has one for each cell of the matrix in which something is reached,
// except those of pods that may come and of a workload with itself, and it names the ports.
func TestArrowsAreCells(t *testing.T) {
	ctx := newBrowser(t)
	run := func(actions ...chromedp.Action) { do(ctx, t, actions...) }
	run(chromedp.Navigate(serve(t, "-f", shop)), waitFor("#graph .node"))
	few := len(arrowsOf(t, run))
	run(click("#every"))
	got := map[string]string{}
	for _, a := range arrowsOf(t, run) {
		got[a.From+" → "+a.To] = strings.ReplaceAll(a.Text, " ", "")
	}

	want := map[string]string{}
	for name, c := range cellsOf(ctx, t) {
		from, to, _ := strings.Cut(name, " → ")
		if c.Text != "·" && from != to && !strings.Contains(name, "new pod") {
			want[name] = strings.ReplaceAll(c.Text, " ", "")
		}
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("arrows (-matrix +graph):\n%s", diff)
	}
	if few >= len(got) {
		t.Errorf("%d arrows at first and %d of all, want fewer", few, len(got))
	}
}

// A page of many workloads begins with namespaces. They unfold and fold by keys.
func TestNamespacesFold(t *testing.T) {
	ctx := newBrowser(t)
	run := func(actions ...chromedp.Action) { do(ctx, t, actions...) }
	run(chromedp.Navigate(writePage(t, "-f", estate(t, 60))), waitFor("#graph .node"))
	count := func() (nodes, frames, rows int) {
		run(chromedp.Evaluate(`document.querySelectorAll("#graph .node").length`, &nodes),
			chromedp.Evaluate(`document.querySelectorAll("#graph .group").length`, &frames),
			chromedp.Evaluate(`document.querySelectorAll("#matrix tbody tr").length`, &rows))
		return nodes, frames, rows
	}
	const outside = 1
	if nodes, frames, rows := count(); nodes != 6+outside || frames != 0 || rows != 6+2 {
		t.Errorf("%d nodes, %d frames and %d rows, want six namespaces", nodes, frames, rows)
	}
	run(focus(`#graph [data-group="team-01"]`), chromedp.KeyEvent(kb.Enter))
	if nodes, frames, _ := count(); nodes != 5+10+outside || frames != 1 {
		t.Errorf("%d nodes and %d frames after one is unfolded", nodes, frames)
	}
	var focused string
	run(chromedp.Evaluate(`document.activeElement.dataset.group`, &focused), chromedp.KeyEvent(" "))
	if nodes, frames, _ := count(); nodes != 6+outside || frames != 0 || focused != "team-01" {
		t.Errorf("%d nodes and %d frames after it is folded; the focus was on %q", nodes, frames, focused)
	}
	var listed []string
	run(click("#unfold"), focus(`#graph [data-name="team-01/deploy/api"]`), chromedp.KeyEvent(kb.Enter),
		chromedp.Evaluate(`[...document.querySelectorAll("#chosen li")].map((l) => l.textContent)`, &listed))
	if nodes, frames, _ := count(); nodes != 60+outside || frames != 6 {
		t.Errorf("%d nodes and %d frames of all", nodes, frames)
	}
	for _, want := range []string{"team-01/deploy/cache: 6379/TCP", "team-01/deploy/web: 8080/TCP", "team-05/deploy/gateway: 443/TCP"} {
		if !strings.Contains(strings.Join(listed, "\n"), want) {
			t.Errorf("the connections of api lack %s: %q", want, listed)
		}
	}
}

// faults finds what cannot be read: text that is wider than its box or out of the drawing, boxes
// without content, and a page that is wider than the window.
const faults = `(() => {
	const found = [], root = document.documentElement;
	if (root.scrollWidth > root.clientWidth) found.push("the page is wider than the window by " + (root.scrollWidth - root.clientWidth));
	for (const e of document.querySelectorAll("th, td a, #summary details, #graph, #chosen p, header p")) {
		if (e.offsetParent === null) continue;
		if (e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0) found.push("clipped: " + e.textContent.slice(0, 80));
		if (e.matches("#summary details, #graph") && !e.textContent.trim()) found.push("empty: " + e.id);
	}
	const svg = document.querySelector("#graph svg"), box = svg.viewBox.baseVal;
	for (const text of svg.querySelectorAll("text")) {
		const b = text.getBBox();
		if (!text.textContent) found.push("a text is empty");
		if (b.x < box.x || b.y < box.y || b.x + b.width > box.x + box.width || b.y + b.height > box.y + box.height) found.push("out of the drawing: " + text.textContent);
		const frame = text.parentElement.querySelector("rect")?.getBBox();
		if (frame && text.parentElement.matches(".node, .edge") && (b.x < frame.x - 1 || b.x + b.width > frame.x + frame.width + 1)) found.push("out of its box: " + text.textContent);
	}
	const nodes = [...svg.querySelectorAll(".node rect")].map((r) => r.getBBox());
	const overlap = (a, b) => a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;
	nodes.forEach((a, i) => nodes.slice(i + 1).forEach((b) => { if (overlap(a, b)) found.push("two nodes overlap"); }));
	for (const title of svg.querySelectorAll(".title text")) {
		if (nodes.some((n) => overlap(title.getBBox(), n))) found.push("a node hides " + title.textContent);
		const frames = [...svg.querySelectorAll(".group > rect")].filter((f) => f.parentElement !== title.closest(".group"));
		if (frames.some((f) => overlap(title.getBBox(), f.getBBox()))) found.push("a frame hides " + title.textContent);
	}
	for (const r of svg.querySelectorAll(".edge rect")) if (nodes.some((n) => overlap(r.getBBox(), n))) found.push("a node hides " + r.parentElement.textContent);
	return found;
})()`

func TestEverythingCanBeRead(t *testing.T) {
	ctx := newBrowser(t)
	for _, workloads := range []int{20, 60, 200} {
		url := writePage(t, "-f", estate(t, workloads))
		for _, width := range []int64{1400, 480} {
			t.Run(fmt.Sprintf("%d workloads at %d", workloads, width), func(t *testing.T) {
				var found, unfolded []string
				do(ctx, t, chromedp.EmulateViewport(width, 1000), chromedp.Navigate(url), waitFor("#graph .node"),
					chromedp.Evaluate(`document.querySelectorAll("details").forEach((d) => { d.open = true; })`, nil),
					chromedp.Evaluate(faults, &found))
				if workloads <= 60 {
					do(ctx, t, click("#unfold"), chromedp.Evaluate(faults, &unfolded))
				}
				for _, fault := range append(found, unfolded...) {
					t.Error(fault)
				}
			})
		}
	}
}

// The summary says what is open to the world as the matrix does, names the pods that no policy
// selects, and leads from findings to reasons.
func TestSummary(t *testing.T) {
	ctx := newBrowser(t)
	do(ctx, t, chromedp.Navigate(writePage(t, "-f", estate(t, 20))), waitFor("#summary"))
	var parts []struct {
		Title string
		Links []string
	}
	do(ctx, t, chromedp.Evaluate(`[...document.querySelectorAll("#summary > details")].map((d) => ({Title: d.querySelector("summary").textContent,
		Links: [...d.querySelectorAll("li > a")].map((a) => a.textContent)}))`, &parts))
	var open []string
	for _, team := range []string{"team-00", "team-01"} {
		open = append(open, team+"/deploy/gateway", team+"/deploy/mailer")
	}
	want := map[string][]string{
		"4 workloads open to the world":              open,
		"20 workloads may connect to the world":      nil,
		"2 workloads whose ingress no policy limits": {"team-00/deploy/mailer", "team-01/deploy/mailer"},
		"20 workloads whose egress no policy limits": nil,
	}
	for _, part := range parts {
		links, known := want[part.Title]
		if known && links != nil && !slices.Equal(links, slices.Sorted(slices.Values(part.Links))) {
			t.Errorf("%s: %q, want %q", part.Title, part.Links, links)
		}
		delete(want, part.Title)
	}
	if len(want) != 0 || len(parts) != 5 {
		t.Errorf("%v are missing of %v", want, parts)
	}
	var title string
	do(ctx, t, click(`#summary > details:last-child > summary`), click(`#summary > details:last-child li > a`),
		waitFor(".explanation:target pre"), text(".explanation:target h2", &title))
	if !strings.HasPrefix(title, "outside → team-00/deploy/mailer: all") {
		t.Errorf("a finding leads to the reasons of %q", title)
	}
}

// In the graph, arrows say which ports are gained and lost.
func TestChangesInTheGraph(t *testing.T) {
	ctx := newBrowser(t)
	run := func(actions ...chromedp.Action) { do(ctx, t, actions...) }
	run(chromedp.Navigate(writePage(t, "-f", cluster, "--apply", changes)), waitFor("#graph .node"), click("#every"))
	arrows := map[string]string{}
	for _, a := range arrowsOf(t, run) {
		arrows[a.From+" → "+a.To] = a.Class
	}
	marked := 0
	for name, c := range cellsOf(ctx, t) {
		from, to, _ := strings.Cut(name, " → ")
		if from == to || strings.Contains(name, "new pod") {
			continue
		}
		for _, mark := range []string{"gained", "lost"} {
			is, want := strings.Contains(arrows[name], mark), strings.Contains(c.Class, mark)
			if is != want {
				t.Errorf("%s: the arrow is %q and the cell %q", name, arrows[name], c.Class)
			}
			if want {
				marked++
			}
		}
	}
	if marked == 0 {
		t.Error("nothing is marked")
	}
}

// TestPictures draws the pictures of the documentation: make view-picture.
func TestPictures(t *testing.T) {
	folder := os.Getenv("PICTURES")
	if folder == "" {
		t.Skip("PICTURES is not set: nothing is to be drawn")
	}
	for _, workloads := range []int{20, 60, 200} {
		ctx := newBrowser(t)
		var picture []byte
		do(ctx, t, chromedp.EmulateViewport(1400, 1200), chromedp.Navigate(writePage(t, "-f", estate(t, workloads))), waitFor("#graph .node"),
			// Pictures do not change with the time and the folder of the file.
			chromedp.Evaluate(`document.querySelector("header p").textContent = "Read from estate.yaml."`, nil))
		if workloads == 60 {
			do(ctx, t, click(`#graph [data-group="team-01"]`))
		}
		do(ctx, t, chromedp.FullScreenshot(&picture, 100))
		if err := os.WriteFile(filepath.Join(folder, fmt.Sprintf("view-%d.png", workloads)), small(t, picture), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// small returns a picture with the 256 colours that it uses most: those of a page are few.
func small(t *testing.T, picture []byte) []byte {
	t.Helper()
	from, err := png.Decode(bytes.NewReader(picture))
	if err != nil {
		t.Fatal(err)
	}
	counts := map[color.RGBA]int{}
	bounds := from.Bounds()
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			counts[color.RGBAModel.Convert(from.At(x, y)).(color.RGBA)]++
		}
	}
	used := slices.SortedFunc(maps.Keys(counts), func(a, b color.RGBA) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a.R, b.R), cmp.Compare(a.G, b.G), cmp.Compare(a.B, b.B))
	})
	var palette color.Palette
	for _, c := range used[:min(256, len(used))] {
		palette = append(palette, c)
	}
	nearest := map[color.RGBA]uint8{}
	for c := range counts {
		nearest[c] = uint8(palette.Index(c))
	}
	to := image.NewPaletted(bounds, palette)
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			to.SetColorIndex(x, y, nearest[color.RGBAModel.Convert(from.At(x, y)).(color.RGBA)])
		}
	}
	var out bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, to); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
