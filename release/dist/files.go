package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"regexp"
	"runtime/debug"
	"strings"

	"sigs.k8s.io/yaml"
)

var versions = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`)

// changes returns the section of a version of a changelog, without its heading.
func changes(changelog, version string) (string, error) {
	heading := regexp.MustCompile(`(?m)^## \[` + regexp.QuoteMeta(version) + `\].*\n`).FindStringIndex(changelog)
	if heading == nil {
		return "", fmt.Errorf("CHANGELOG.md has no section [%s]", version)
	}
	section, _, _ := strings.Cut(changelog[heading[1]:], "\n## [")
	if section = strings.TrimSpace(section); section == "" {
		return "", fmt.Errorf("the section [%s] of CHANGELOG.md is empty", version)
	}
	return section + "\n", nil
}

// A file is packed into an archive.
type file struct {
	name    string
	mode    int64
	content []byte
}

// pack returns a compressed archive that depends on nothing but the files.
func pack(files ...file) ([]byte, error) {
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	archive := tar.NewWriter(zip)
	for _, f := range files {
		header := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content)), Format: tar.FormatUSTAR}
		if err := archive.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := archive.Write(f.content); err != nil {
			return nil, err
		}
	}
	err := cmp.Or(archive.Close(), zip.Close())
	return out.Bytes(), err
}

// An archive has kubectl-netpol for one platform.
type archive struct {
	platform
	name string
	sum  string // SHA-256, in hexadecimal
}

// pluginName returns the name of the plugin's program.
func pluginName(p platform) string {
	if p.os == "windows" {
		return "kubectl-netpol.exe"
	}
	return "kubectl-netpol"
}

// completionName is the name of the script that kubectl runs to complete the plugin's words.
const completionName = "kubectl_complete-netpol"

// pluginFiles returns what is in an archive. The script is for the shells of Unix.
func pluginFiles(p platform, program, completion, license []byte) []file {
	files := []file{{pluginName(p), 0o755, program}, {"LICENSE", 0o644, license}}
	if p.os == "windows" {
		return files
	}
	return append(files, file{completionName, 0o755, completion})
}

// embedded are the libraries that are in a program and are not modules of Go, by the command's
// name. Their versions are those of the first line of the files.
var embedded = map[string][]npmPackage{"kubectl-netpol": {{"@dagrejs/dagre", "3.1.3", "MIT"}}}

type npmPackage struct{ name, version, license string }

// bom returns the bill of materials of a Go program as CycloneDX 1.6
// (https://cyclonedx.org/docs/1.6/json/): the modules that the program says it is made of,
// Go's own libraries, and those that are embedded.
func bom(name, version string, info *debug.BuildInfo) ([]byte, error) {
	type object = map[string]any
	component := func(kind, name, version string) object {
		url := "pkg:golang/" + name + "@" + version
		return object{"type": kind, "bom-ref": url, "name": name, "version": version, "purl": url}
	}
	components := []object{component("library", "stdlib", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		components = append(components, component("library", m.Path, m.Version))
	}
	for _, p := range embedded[name] {
		url := "pkg:npm/" + strings.Replace(p.name, "@", "%40", 1) + "@" + p.version
		components = append(components, object{
			"type": "library", "bom-ref": url, "name": p.name, "version": p.version, "purl": url,
			"licenses": []object{{"license": object{"id": p.license}}},
		})
	}
	return json.MarshalIndent(object{
		"bomFormat":   "CycloneDX",
		"specVersion": "1.6",
		"version":     1,
		"metadata":    object{"component": component("application", info.Path, version)},
		"components":  components,
	}, "", "  ")
}

// krew returns the manifest of the plugin, whose fields are those of
// https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest.
func krew(version, project string, archives []archive) ([]byte, error) {
	type object = map[string]any
	var platforms []object
	for _, a := range archives {
		platforms = append(platforms, object{
			"selector": object{"matchLabels": object{"os": a.os, "arch": a.arch}},
			"uri":      project + "/releases/download/" + version + "/" + a.name,
			"sha256":   a.sum,
			"bin":      pluginName(a.platform),
		})
	}
	return yaml.Marshal(object{
		"apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
		"kind":       "Plugin",
		"metadata":   object{"name": "netpol"},
		"spec": object{
			"version":          version,
			"homepage":         project,
			"shortDescription": "Show what network policies do",
			"description": "Prints which pods reach which, explains one connection rule by rule, shows\n" +
				"what a change of policies would change, and checks policies in CI.\n",
			"caveats": "To complete words, link the script " + completionName + " of the plugin's folder\n" +
				"into a folder of PATH.\n",
			"platforms": platforms,
		},
	})
}
