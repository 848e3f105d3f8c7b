package view

import (
	"os"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/google/go-cmp/cmp"
)

// A file with many cells has the reasons of all of them, too: those of a row are unpacked when one is
// asked for, by a link or by the address of the page.
func TestPackedReasons(t *testing.T) {
	ctx, cluster := newBrowser(t), estate(t, 60)
	url := writePage(t, "--by", "workload", "-f", cluster)
	file, err := os.ReadFile(strings.TrimPrefix(url, "file://"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(file), "<noscript>") || strings.Contains(string(file), "Denied by") {
		t.Error("the file has reasons that are not packed, or does not say that they need scripts")
	}
	reasons := func(from, to, port string) string { return call(t, "explain", from, to, "--port", port, "-f", cluster) }
	shown := ".explanation:target pre"
	var label, allowed, denied, again string
	do(ctx, t, chromedp.Navigate(url), waitFor("#graph .node"),
		with(`#matrix a[aria-label^="team-00/deploy/web → team-00/deploy/db:"]`, `e.ariaLabel`, &label),
		click(`#matrix a[aria-label^="team-00/deploy/web → team-00/deploy/api:"]`), waitFor(shown), text(shown, &allowed),
		click(`.explanation:target a`), waitUntil(`!document.querySelector(".explanation:target")`),
		click(`#matrix a[aria-label^="team-00/deploy/web → team-00/deploy/db:"]`), waitFor(shown), text(shown, &denied),
		chromedp.Reload(), waitFor(shown), text(shown, &again))
	if want := "team-00/deploy/web → team-00/deploy/db: nothing"; label != want {
		t.Errorf("the label of an empty cell is %q, want %q", label, want)
	}
	if diff := cmp.Diff(reasons("team-00/deploy/web", "team-00/deploy/api", "8080"), allowed); diff != "" {
		t.Errorf("reasons of what is allowed (-explain +page):\n%s", diff)
	}
	if diff := cmp.Diff(reasons("team-00/deploy/web", "team-00/deploy/db", "443"), denied); diff != "" || again != denied {
		t.Errorf("reasons of what is denied (-explain +page):\n%s\nand after the page was loaded again\n%s", diff, again)
	}
}
