package clusterfiles

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/api/types"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/helmchart"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/words"
)

// unread warns of policies in the folders with kustomizations that kustomize did not read: a
// Component, or a file, that no kustomization has is easily taken for one that is in force.
func (c *collector) unread() {
	known := map[string]bool{}
	for _, folder := range slices.Sorted(maps.Keys(c.kustomizations)) {
		if built, tried := c.built[folder]; built || !tried { // else it is named already
			c.path = c.paths[c.kustomizations[folder]]
			c.unreadBelow(folder, known)
		}
	}
}

// unreadBelow warns of the policies below a folder, once for each folder.
func (c *collector) unreadBelow(folder string, known map[string]bool) {
	real, err := realPath(folder)
	if err != nil || known[real] {
		return
	}
	known[real] = true
	files, folders := c.manifestsIn(folder)
	if component, isComponent := c.unusedComponent(files); isComponent {
		if n := c.withPolicies(folder, files, folders, map[string]bool{}); n > 0 {
			c.warn(component, "this Component, with %s, is in no kustomization that was built", words.Count(n, "file of policies", "files of policies"))
		} else {
			c.components++
		}
		return
	}
	c.warnOfFiles(files)
	for _, below := range folders {
		c.unreadBelow(below, known)
	}
}

// warnOfFiles warns of those of a folder's files with policies that were not read.
func (c *collector) warnOfFiles(files []string) {
	var first Position
	more := 0
	for _, name := range files {
		switch line := c.policyLine(name); {
		case line == 0:
		case first.File == "":
			first = Position{name, line}
		default:
			more++
		}
	}
	switch {
	case more > 0:
		c.warn(first, "no kustomization that was built has this file, nor %s of policies in its folder", words.Count(more, "other file", "other files"))
	case first.File != "":
		c.warn(first, "no kustomization that was built has this file of policies")
	}
}

func (c *collector) warn(at Position, format string, args ...any) {
	c.errs = append(c.errs, &tolerable{fmt.Errorf("%s: %s", at, fmt.Sprintf(format, args...)), "passed over"})
}

// manifestsIn returns the files and the folders in a folder that are read without a kustomization.
func (c *collector) manifestsIn(folder string) (files, folders []string) {
	entries, _ := os.ReadDir(folder) // kustomize has read from it
	for _, e := range entries {
		name := filepath.Join(folder, e.Name())
		info, err := os.Stat(name)
		switch {
		case err != nil || strings.HasPrefix(e.Name(), ".") || c.excluded(name):
		case info.IsDir() && !has(name, helmchart.IsFile):
			folders = append(folders, name)
		case info.Mode().IsRegular() && (isManifest(name) || isKustomization(e.Name())):
			files = append(files, name)
		}
	}
	return files, folders
}

// unusedComponent returns the place of a Component among the files of a folder that was not built.
func (c *collector) unusedComponent(files []string) (Position, bool) {
	i := slices.IndexFunc(files, func(name string) bool { return isKustomization(filepath.Base(name)) })
	if i < 0 || c.wasRead(files[i]) {
		return Position{}, false
	}
	data, err := os.ReadFile(files[i])
	if err != nil {
		return Position{}, false
	}
	k, err := parseKustomization(data)
	return Position{files[i], lineWith(data, types.ComponentKind)}, err == nil && k.Kind == types.ComponentKind
}

func (c *collector) wasRead(name string) bool {
	real, err := realPath(name)
	return err != nil || c.read[real]
}

// policyLine returns the line of the first policy in a file that was not read, 0 if there is none.
func (c *collector) policyLine(name string) int {
	if c.seen[filepath.Clean(name)] || c.wasRead(name) {
		return 0
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return 0
	}
	at := policyKind.FindIndex(data)
	if at == nil {
		return 0
	}
	return 1 + strings.Count(string(data[:at[0]]), "\n")
}

// withPolicies counts the files with policies in a folder and below that were not read.
func (c *collector) withPolicies(folder string, files, folders []string, known map[string]bool) int {
	real, err := realPath(folder)
	if err != nil || known[real] {
		return 0
	}
	known[real] = true
	n := 0
	for _, name := range files {
		if c.policyLine(name) > 0 {
			n++
		}
	}
	for _, below := range folders {
		files, folders := c.manifestsIn(below)
		n += c.withPolicies(below, files, folders, known)
	}
	return n
}
