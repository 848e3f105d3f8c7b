package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
)

// What doctor and the documentation call supported is what modules, tests and workflows use.
func TestSupportedVersions(t *testing.T) {
	page, modules, workflow := text(t, "docs/install/versions.md"), text(t, "go.mod"), text(t, ".github/workflows/e2e.yml")
	find := func(in, pattern string) string {
		t.Helper()
		m := regexp.MustCompile(pattern).FindStringSubmatch(in)
		if m == nil {
			t.Fatalf("no %s", pattern)
		}
		return m[1]
	}
	if library := "1." + find(modules, `k8s\.io/client-go v0\.(\d+)`); newestKubernetes != library {
		t.Errorf("the newest Kubernetes is %s, the library is of %s", newestKubernetes, library)
	}
	if used := find(modules, `sigs\.k8s\.io/network-policy-api (v\S+)`); newestDefinitions != used {
		t.Errorf("the newest definitions are %s, the module is %s", newestDefinitions, used)
	}
	folders, err := filepath.Glob("../../tests/cluster/integration/servers/v1.*")
	if err != nil {
		t.Fatal(err)
	}
	var servers []*version.Version
	for _, f := range folders {
		servers = append(servers, version.MustParseGeneric(filepath.Base(f)))
	}
	slices.SortFunc(servers, func(a, b *version.Version) int { return int(a.Minor()) - int(b.Minor()) })
	if oldest, newest := servers[0].String(), servers[len(servers)-1].String(); oldest != oldestKubernetes || newest != newestKubernetes {
		t.Errorf("API servers %s to %s are tested, %s to %s are supported", oldest, newest, oldestKubernetes, newestKubernetes)
	}
	clusters := regexp.MustCompile(`v(1\.\d+)\.\d+`).FindAllStringSubmatch(find(workflow, `kubernetes: \[(.*)\]`), -1)
	for _, want := range []string{
		"| Kubernetes | " + oldestKubernetes + " to " + newestKubernetes + " | API servers " + oldestKubernetes + " and " + newestKubernetes +
			", clusters " + clusters[len(clusters)-1][1] + " to " + clusters[0][1] + " |",
		"network-policy-api up to " + newestDefinitions + ":",
		"may differ by " + []string{"no", "one", "two"}[versionSkew] + " minor version",
		"| architectures of the image | " + strings.Join(architectures(t), ", ") + " |",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("docs/install/versions.md does not have %q", want)
		}
	}
	for _, want := range []string{"| Kubernetes | " + oldestKubernetes + " to " + newestKubernetes + " (", " for " + strings.Join(architectures(t), ", ") + " |", "Linux from " + find(page, `\| Linux \| from (\S+)`)} {
		if !strings.Contains(text(t, "README.md"), want) {
			t.Errorf("README.md does not have %q", want)
		}
	}
	if words := len(strings.Fields(page)); words > 500 {
		t.Errorf("the page has %d words", words)
	}
}

// architectures returns those of the image.
func architectures(t *testing.T) (all []string) {
	t.Helper()
	line := regexp.MustCompile(`agents += .*`).FindString(text(t, "release/dist/main.go"))
	for _, m := range regexp.MustCompile(`\{"linux", "(\w+)"\}`).FindAllStringSubmatch(line, -1) {
		all = append(all, m[1])
	}
	return all
}

func text(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../..", path))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// Every cause of the node's problems that the documentation has is one for which doctor knows what to
// do, and no other.
func TestRemedies(t *testing.T) {
	_, table, _ := strings.Cut(text(t, "docs/modules/node-checks.md"), "| cause | what is found |")
	table, _, _ = strings.Cut(table, "\n\n")
	var documented []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(table, -1) {
		documented = append(documented, m[1])
	}
	slices.Sort(documented)
	if known := sortedKeys(remedies); len(known) < 10 || !slices.Equal(known, documented) {
		t.Errorf("doctor knows %q, documented are %q", known, documented)
	}
}
