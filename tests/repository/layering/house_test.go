package layering

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A part is a row of the table of core, drivers and modules.
type part struct {
	name     string
	packages []string // prefixes, as in a rule
	bound    int      // of lines
}

// TestHouse prints the size of core, drivers and modules: make house.
func TestHouse(t *testing.T) {
	graph, parts := load(t), readParts(t)
	lines := map[string]int{}
	for name := range graph {
		if own, ok := strings.CutPrefix(name, module); ok {
			lines[partOf(parts, own).name] += linesOf(t, own)
		}
	}
	for _, p := range parts {
		t.Logf("%s: %d lines, at most %d", p.name, lines[p.name], p.bound)
		if lines[p.name] == 0 || lines[p.name] > p.bound {
			t.Errorf("%s has %d lines, and docs/architecture.md bounds it to %d", p.name, lines[p.name], p.bound)
		}
	}
	for _, wrong := range wrongImports(graph, parts) {
		t.Error(wrong)
	}
}

// The page fits into one reading.
func TestArchitectureIsShort(t *testing.T) {
	const most = 2500
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	if words := len(bytes.Fields(text)); words > most {
		t.Errorf("docs/architecture.md has %d words, more than %d", words, most)
	}
}

// Each kind of import that modules must not have is noticed.
func TestWrongImportsAreNoticed(t *testing.T) {
	graph, parts := load(t), readParts(t)
	for _, tt := range []struct{ from, to string }{
		{"pkg/agent/enforce", "pkg/agent/flows"},
		{"pkg/agent/event", "pkg/agent/packets"},
		{"pkg/agent/module", "pkg/agent/flows"},
		{"pkg/agent", "pkg/agent/flows"},
		{"pkg/agent", "pkg/cluster/manifests"},
		{"pkg/engine/policy", "pkg/agent/names"},
		{"pkg/agent/flows", "pkg/agent/packets"},
		{"pkg/agent/verdictcache", "pkg/agent/names"},
		{"pkg/kernel/steer", "pkg/agent/nodecheck"},
	} {
		t.Run(tt.from+" > "+tt.to, func(t *testing.T) {
			mutant := maps.Clone(graph)
			mutant[module+tt.from] = append(slices.Clone(mutant[module+tt.from]), module+tt.to)
			want := fmt.Sprintf("%s imports %s", tt.from, tt.to)
			if got := wrongImports(mutant, parts); len(got) != 1 || !strings.Contains(got[0], want) {
				t.Errorf("got %q, want that %s", got, want)
			}
		})
	}
}

// wrongImports returns the imports of modules by the core, by drivers and by other modules.
func wrongImports(graph map[string][]string, parts []part) (wrong []string) {
	for _, name := range slices.Sorted(maps.Keys(graph)) {
		own, ok := strings.CutPrefix(name, module)
		from := partOf(parts, own)
		if !ok || from.name == "" {
			continue
		}
		for _, dep := range graph[name] {
			theirs, ok := strings.CutPrefix(dep, module)
			to := partOf(parts, theirs)
			if ok && to.name == "modules" && from.packages[0] != to.packages[0] {
				wrong = append(wrong, fmt.Sprintf("%s imports %s, a module", own, theirs))
			}
		}
	}
	return wrong
}

// partOf returns the part of a package with the prefix of it alone, no part if it has none.
func partOf(parts []part, own string) (found part) {
	for _, p := range parts {
		prefix, ok := longest(p.packages, own)
		if ok && (found.name == "" || len(prefix) > len(found.packages[0])) {
			found = part{name: p.name, packages: []string{prefix}, bound: p.bound}
		}
	}
	return found
}

func readParts(t *testing.T) (parts []part) {
	t.Helper()
	for _, row := range table(t, document, "| part | packages | lines at most |") {
		bound, err := strconv.Atoi(strings.ReplaceAll(row[2], ",", ""))
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, part{row[0], prefixes(row[1]), bound})
	}
	return parts
}

// linesOf returns the lines of the files of a package without tests, 0 for packages that help tests.
func linesOf(t *testing.T, own string) (lines int) {
	t.Helper()
	if strings.HasSuffix(own, "test") {
		return 0
	}
	files, err := filepath.Glob(filepath.Join("../../..", own, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		lines += bytes.Count(text, []byte("\n"))
	}
	return lines
}
