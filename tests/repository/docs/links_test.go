package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	fence   = regexp.MustCompile("(?ms)^```.*?^```$")
)

// pages are the Markdown files that readers may come to, by their path.
func pages(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, start := range []string{"README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "docs", "examples", "charts"} {
		err := filepath.WalkDir(filepath.Join(root, start), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".md") {
				return err
			}
			name, err := filepath.Rel(root, path)
			if err == nil {
				found[name] = fence.ReplaceAllString(read(t, name), "")
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// anchor is what a heading is called in links.
func anchor(heading string) string {
	heading = regexp.MustCompile("[`*]").ReplaceAllString(strings.ToLower(heading), "")
	return strings.ReplaceAll(regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(heading, ""), " ", "-")
}

// index is the page that leads to all others.
const index = "docs/README.md"

// Every link within the repository leads to a file that exists and, where it names
// one, to a heading. Every page can be reached from the index, and the index from the
// README.
func TestLinksLead(t *testing.T) {
	all := pages(t)
	if !slices.Contains(targets(all, "README.md"), index) {
		t.Errorf("README.md does not link to %s", index)
	}
	reached := map[string]bool{index: true, "README.md": true}
	for todo := []string{index}; len(todo) > 0; todo = todo[1:] {
		for _, to := range targets(all, todo[0]) {
			if _, page := all[to]; page && !reached[to] {
				reached[to] = true
				todo = append(todo, to)
			}
		}
	}
	for name, text := range all {
		if !reached[name] {
			t.Errorf("no links lead from %s to %s", index, name)
		}
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(m[1], "://") {
				checkLink(t, all, name, m[1])
			}
		}
	}
}

// TestKindsHaveDocs checks the sections that the table of kinds names.
func TestKindsHaveDocs(t *testing.T) {
	all := pages(t)
	for _, k := range compile.Kinds {
		t.Run(k.Name, func(t *testing.T) { checkLink(t, all, "README.md", k.Docs) })
	}
}

// targets are the files that a page links to.
func targets(all map[string]string, page string) []string {
	var to []string
	for _, m := range link.FindAllStringSubmatch(all[page], -1) {
		path, _, _ := strings.Cut(m[1], "#")
		to = append(to, filepath.Join(filepath.Dir(page), path))
	}
	return to
}

func checkLink(t *testing.T, all map[string]string, page, target string) {
	t.Helper()
	path, fragment, named := strings.Cut(target, "#")
	to := page
	if path != "" {
		to = filepath.Join(filepath.Dir(page), path)
	}
	if _, err := os.Stat(filepath.Join(root, to)); err != nil {
		t.Errorf("%s links to %s, which does not exist", page, target)
		return
	}
	if !named {
		return
	}
	for _, m := range heading.FindAllStringSubmatch(all[to], -1) {
		if anchor(m[1]) == fragment {
			return
		}
	}
	t.Errorf("%s links to %s, and %s has no such heading", page, target, to)
}
