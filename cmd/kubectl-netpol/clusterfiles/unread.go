package clusterfiles

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/helmchart"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/words"
)

// unread warns of policies in the folders with kustomizations that kustomize did not read: those of a
// file, or of a Component, that no kustomization has are easily taken for ones that are in force.
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
		case info.Mode().IsRegular() && isManifest(name):
			files = append(files, name)
		}
	}
	return files, folders
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
