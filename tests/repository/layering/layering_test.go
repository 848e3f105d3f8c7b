// Package layering holds layering.md: what packages may reach of this module, and what they must not
// reach elsewhere; and the sizes of core, drivers and modules in docs/architecture.md.
package layering

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const (
	module   = "sigs.k8s.io/kube-network-policies/"
	plugin   = "cmd/kubectl-netpol" // a module of its own
	document = "../../../docs/architecture.md"
	tables   = "layering.md"
)

// A rule is a row of the table of packages.
type rule struct {
	// packages are the prefixes that the row is about: a package and all below it that
	// have no longer prefix in another row.
	packages []string
	// reaches are the prefixes of what they may reach of this module, directly or not.
	reaches []string
	// never are the import paths of other modules that they must not reach, see banned.
	never []string
	// row is where the row is in the table, for messages.
	row string
}

func TestPackagesStayBehindTheirBoundaries(t *testing.T) {
	graph := load(t)
	rules := readRules(t)
	used := map[string]bool{} // rows' prefixes, and "row > prefix" of what they reach
	for _, name := range slices.Sorted(maps.Keys(graph)) {
		own, ok := strings.CutPrefix(name, module)
		if !ok {
			continue
		}
		t.Run(own, func(t *testing.T) {
			r, prefix := ruleOf(rules, own)
			if r == nil {
				t.Fatalf("%s has no row in the table of packages of layering.md", own)
			}
			used[prefix] = true
			check(t, graph, own, r, used)
		})
	}
	for _, r := range rules {
		for _, p := range r.packages {
			if !used[p] {
				t.Errorf("layering.md has a row for %s, which does not exist", p)
			}
		}
		for _, p := range r.reaches {
			if !used[r.row+" > "+p] {
				t.Errorf("layering.md lets %s reach %s, which no package of the row does", r.row, p)
			}
		}
	}
}

func check(t *testing.T, graph map[string][]string, own string, r *rule, used map[string]bool) {
	via := reach(graph, module+own)
	for dep := range via {
		if ours, ok := strings.CutPrefix(dep, module); ok {
			prefix, ok := longest(r.reaches, ours)
			if !ok {
				t.Errorf("%s reaches %s: %s", own, ours, path(via, dep))
			}
			used[r.row+" > "+prefix] = true
		}
		// Of the standard library only what the package imports itself counts.
		if banned(dep, r.never) && (!isStandard(dep) || via[dep] == module+own) {
			t.Errorf("%s reaches %s: %s", own, dep, path(via, dep))
		}
	}
}

// ruleOf returns the row of a package, the one with the longest prefix, and this prefix.
func ruleOf(rules []*rule, own string) (found *rule, prefix string) {
	for _, r := range rules {
		if p, ok := longest(r.packages, own); ok && (found == nil || len(p) > len(prefix)) {
			found, prefix = r, p
		}
	}
	return found, prefix
}

// longest returns the longest of the prefixes that a package is, or is below. The empty
// prefix is that of all packages.
func longest(prefixes []string, own string) (found string, ok bool) {
	for _, p := range prefixes {
		if (p == "" || p == own || strings.HasPrefix(own, p+"/")) && (!ok || len(p) > len(found)) {
			found, ok = p, true
		}
	}
	return found, ok
}

// readRules returns the rows of the table of packages. Its names of libraries are
// explained by a second table.
func readRules(t *testing.T) []*rule {
	t.Helper()
	libraries := map[string][]string{}
	for _, row := range table(t, tables, "| library | import paths |") {
		libraries[row[0]] = list(row[1])
	}
	var rules []*rule
	for _, row := range table(t, tables, "| packages | what they own, or why the rule | may reach | never reach |") {
		r := &rule{row: row[0], packages: prefixes(row[0])}
		switch row[2] {
		case "nothing":
		case "anything":
			r.reaches = []string{""}
		default:
			r.reaches = prefixes(row[2])
		}
		for _, name := range list(row[3]) {
			if libraries[name] == nil {
				t.Fatalf("layering.md: %s names %q, which the table of libraries does not have", r.row, name)
			}
			r.never = append(r.never, libraries[name]...)
		}
		rules = append(rules, r)
	}
	return rules
}

// prefixes returns the packages of a cell, those of pkg being named without it.
func prefixes(cell string) []string {
	names := list(cell)
	for i, name := range names {
		if wing, _, _ := strings.Cut(name, "/"); wing != "cmd" && wing != "tests" {
			names[i] = "pkg/" + name
		}
	}
	return names
}

// table returns the cells of the table of a document that begins with header.
func table(t *testing.T, document, header string) [][]string {
	t.Helper()
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	_, body, ok := strings.Cut(string(text), "\n"+header+"\n")
	if !ok {
		t.Fatalf("%s has no table %q", document, header)
	}
	columns := strings.Count(header, "|") - 1
	var rows [][]string
	for line := range strings.Lines(body) {
		if !strings.HasPrefix(line, "|") {
			break
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != columns {
			t.Fatalf("%s: not %d cells: %s", document, columns, line)
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, cells)
	}
	return rows[1:] // the line below the header
}

// list splits a cell at its commas.
func list(cell string) []string {
	var out []string
	for item := range strings.SplitSeq(cell, ",") {
		if item = strings.Trim(item, " `"); item != "" {
			out = append(out, item)
		}
	}
	return out
}

// banned reports whether an import path is one of paths: a path of the standard
// library itself, another one with all that is below it. "*" is every other module.
func banned(dep string, paths []string) bool {
	if strings.HasPrefix(dep, module) {
		return false
	}
	return slices.ContainsFunc(paths, func(p string) bool {
		switch {
		case p == "*":
			return !isStandard(dep)
		case isStandard(p):
			return dep == p
		}
		return dep == p || strings.HasPrefix(dep, p+"/")
	})
}

// isStandard reports whether an import path is of the standard library.
func isStandard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

// load returns what every package of the module, of the plugin's module and their dependencies imports.
func load(t *testing.T) map[string][]string {
	t.Helper()
	graph := map[string][]string{}
	add(t, graph, "../../..", module+"...")
	add(t, graph, "../../../"+plugin, "./...")
	return graph
}

// add adds the packages that match a pattern in the module of a folder.
func add(t *testing.T, graph map[string][]string, folder, pattern string) {
	t.Helper()
	cmd := exec.Command("go", "list", "-C", folder, "-deps", "-json=ImportPath,Imports,Standard", pattern)
	out, err := cmd.Output()
	if err != nil {
		if exit := new(exec.ExitError); errors.As(err, &exit) {
			t.Fatalf("%v: %v\n%s", cmd, err, exit.Stderr)
		}
		t.Fatalf("%v: %v", cmd, err)
	}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath string
			Imports    []string
			Standard   bool
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		if p.Standard {
			p.Imports = nil // the standard library may import what it likes
		}
		graph[p.ImportPath] = append([]string{}, p.Imports...)
	}
}

// reach returns everything that root imports, directly or not, each with the
// package that imports it on the shortest way.
func reach(graph map[string][]string, root string) map[string]string {
	via := map[string]string{}
	for todo := []string{root}; len(todo) > 0; {
		importer := todo[0]
		todo = todo[1:]
		for _, dep := range graph[importer] {
			if _, seen := via[dep]; !seen && dep != root {
				via[dep] = importer
				todo = append(todo, dep)
			}
		}
	}
	return via
}

// path prints the imports that lead to dep.
func path(via map[string]string, dep string) string {
	out := dep
	for importer, ok := via[dep]; ok; importer, ok = via[importer] {
		out = fmt.Sprintf("%s > %s", importer, out)
	}
	return out
}
