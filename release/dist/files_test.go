package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/v2/loader"

	"sigs.k8s.io/kube-network-policies/release/chart"
)

const changelog = `# Changelog

## [Unreleased]

## [0.2.0] - 2026-11-22

### Added
- Two.

## [0.1.0] - 2026-01-01
- One.
`

func TestChanges(t *testing.T) {
	for version, want := range map[string]string{"0.2.0": "### Added\n- Two.\n", "0.1.0": "- One.\n"} {
		t.Run(version, func(t *testing.T) {
			if got, err := changes(changelog, version); got != want || err != nil {
				t.Errorf("got %q, %v, want %q", got, err, want)
			}
		})
	}
	for _, version := range []string{"Unreleased", "0.3.0", "0.2"} {
		if got, err := changes(changelog, version); err == nil || !strings.Contains(err.Error(), "["+version+"]") {
			t.Errorf("%s: got %q, %v, want an error that names it", version, got, err)
		}
	}
}

func TestVersions(t *testing.T) {
	for version, want := range map[string]bool{"v0.1.0": true, "v1.2.3-rc.1": true, "0.1.0": false, "v1.2": false, "v0.1.0 ": false, "main": false} {
		t.Run(version, func(t *testing.T) {
			if versions.MatchString(version) != want {
				t.Errorf("%q is a version: %v, want %v", version, !want, want)
			}
		})
	}
}

func TestSameFilesMakeSameArchive(t *testing.T) {
	one, err := pack(file{"a", 0o755, []byte("x")})
	if err != nil {
		t.Fatal(err)
	}
	if again, err := pack(file{"a", 0o755, []byte("x")}); err != nil || !bytes.Equal(one, again) {
		t.Errorf("the archives differ (%v)", err)
	}
}

func TestKrew(t *testing.T) {
	manifest, err := krew("v0.1.0", "https://example.com", []archive{
		{platform{"linux", "s390x"}, "a.tar.gz", "12ab"}, {platform{"windows", "amd64"}, "b.tar.gz", "34cd"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"kind: Plugin\n", "  name: netpol\n", "  version: v0.1.0\n",
		"  - bin: kubectl-netpol\n    selector:\n      matchLabels:\n        arch: s390x\n        os: linux\n    sha256: 12ab\n    uri: https://example.com/releases/download/v0.1.0/a.tar.gz\n",
		"  - bin: kubectl-netpol.exe\n",
	} {
		if !strings.Contains(string(manifest), want) {
			t.Errorf("the manifest does not have\n%s\nbut is\n%s", want, manifest)
		}
	}
}

func TestArchivesHaveTheCompletion(t *testing.T) {
	for os, want := range map[string]string{"linux": "kubectl-netpol 755, LICENSE 644, kubectl_complete-netpol 755", "windows": "kubectl-netpol.exe 755, LICENSE 644"} {
		t.Run(os, func(t *testing.T) {
			var got []string
			for _, f := range pluginFiles(platform{os, "amd64"}, nil, nil, nil) {
				got = append(got, fmt.Sprintf("%s %o", f.name, f.mode))
			}
			if strings.Join(got, ", ") != want {
				t.Errorf("got %v, want %s", got, want)
			}
		})
	}
}

func TestBillOfMaterials(t *testing.T) {
	bill, err := bom("agent", "v1.2.3", &debug.BuildInfo{GoVersion: "go1.26.1", Path: "example.com/m/cmd/agent", Deps: []*debug.Module{
		{Path: "example.com/a", Version: "v0.1.0"},
		{Path: "example.com/b", Version: "v0.2.0", Replace: &debug.Module{Path: "example.com/c", Version: "v0.3.0"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	var read struct {
		BomFormat  string
		Metadata   struct{ Component struct{ Purl string } }
		Components []struct{ Purl string }
	}
	if err := json.Unmarshal(bill, &read); err != nil {
		t.Fatal(err)
	}
	got := []string{read.BomFormat, read.Metadata.Component.Purl}
	for _, c := range read.Components {
		got = append(got, c.Purl)
	}
	want := []string{"CycloneDX", "pkg:golang/example.com/m/cmd/agent@v1.2.3", "pkg:golang/stdlib@1.26.1", "pkg:golang/example.com/a@v0.1.0", "pkg:golang/example.com/c@v0.3.0"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The bill of the plugin names the library of its page, in the version that is there.
func TestBillHasEmbeddedLibraries(t *testing.T) {
	bill, err := bom("kubectl-netpol", "v1.2.3", &debug.BuildInfo{})
	if err != nil {
		t.Fatal(err)
	}
	library, err := os.ReadFile("../../cmd/kubectl-netpol/view/dagre.js")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range embedded["kubectl-netpol"] {
		if !bytes.Contains(bill, []byte("pkg:npm/%40dagrejs/dagre@"+p.version)) || !strings.HasPrefix(string(library), "/*! dist/dagre.min.js of the npm package "+p.name+" "+p.version+",") {
			t.Errorf("%v is not in the bill, or another version is in the program:\n%s\n%.90s", p, bill, library)
		}
	}
}

// The package of a release installs the published image, as do its install files.
func TestChartOfARelease(t *testing.T) {
	r := release{version: "v9.8.7", image: "registry.example/agent", repository: "../..", folder: t.TempDir()}
	if err := r.chart(); err != nil {
		t.Fatal(err)
	}
	c, err := loader.Load(filepath.Join(r.folder, "kube-network-policies-9.8.7.tgz"))
	if err != nil {
		t.Fatal(err)
	}
	packaged, err := chart.Documents(c, nil, chart.Version)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.manifests(); err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{"the chart": packaged}
	for _, name := range []string{"install.yaml", "install-anp.yaml", "uninstall.yaml"} {
		text, err := os.ReadFile(r.path(name))
		if err != nil {
			t.Fatal(err)
		}
		texts[name] = string(text)
	}
	for name, text := range texts {
		if n := strings.Count(text, "image: registry.example/agent:v9.8.7\n"); n == 0 || n != strings.Count(text, "image: ") {
			t.Errorf("%s names another image:\n%s", name, text)
		}
	}
}
