// Package layering holds the import boundaries of docs/architecture.md: who may
// reach whom, transitively.
package layering

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "sigs.k8s.io/kube-network-policies/"

// rule says what a package may be made of. Standard library packages are
// allowed unless forbidden names them.
type rule struct {
	// ours are the packages of this module that it may reach.
	ours []string
	// forbidden are path prefixes that it must never reach, through whatever.
	forbidden []string
}

var rules = map[string]rule{
	"pkg/packet": {forbidden: []string{"k8s.io/", "sigs.k8s.io/", "github.com/", "golang.org/", "context", "time", "os", "net/http"}},
	"pkg/policy": {
		ours:      []string{"pkg/packet"},
		forbidden: []string{"k8s.io/api/", "k8s.io/client-go", "sigs.k8s.io/knftables", "sigs.k8s.io/network-policy-api", "github.com/prometheus/", "github.com/mdlayher/", "github.com/google/nftables"},
	},
	"pkg/compile": {
		ours:      []string{"pkg/policy", "pkg/packet"},
		forbidden: []string{"k8s.io/client-go", "sigs.k8s.io/knftables", "github.com/prometheus/", "github.com/mdlayher/", "github.com/google/nftables"},
	},
	"pkg/reachability": {
		ours:      []string{"pkg/compile", "pkg/policy", "pkg/packet"},
		forbidden: []string{"k8s.io/client-go", "sigs.k8s.io/knftables", "github.com/prometheus/", "github.com/mdlayher/", "github.com/google/nftables", "github.com/florianl/"},
	},
	"pkg/policycache": {
		ours:      []string{"pkg/policycache/manifests", "pkg/policycache/podwatch", "pkg/compile", "pkg/policy", "pkg/packet", "pkg/runner"},
		forbidden: []string{"sigs.k8s.io/knftables", "github.com/mdlayher/", "github.com/google/nftables", "github.com/florianl/"},
	},
	"pkg/policycache/podwatch": {
		ours:      []string{"pkg/compile", "pkg/policy", "pkg/packet"},
		forbidden: []string{"sigs.k8s.io/knftables", "github.com/mdlayher/", "github.com/google/nftables", "github.com/florianl/"},
	},
	"pkg/enforce": {
		ours:      []string{"pkg/policy", "pkg/packet"},
		forbidden: []string{"k8s.io/client-go", "k8s.io/api/", "sigs.k8s.io/knftables", "github.com/mdlayher/", "github.com/google/nftables", "github.com/florianl/"},
	},
	"pkg/queue": {
		forbidden: []string{"k8s.io/api", "k8s.io/client-go", "k8s.io/component-base", "sigs.k8s.io/"},
	},
	"pkg/steer": {
		ours:      []string{"pkg/runner"},
		forbidden: []string{"k8s.io/api/", "k8s.io/client-go", "github.com/florianl/"},
	},
	"pkg/conntrack": {
		ours:      []string{"pkg/packet", "pkg/runner"},
		forbidden: []string{"k8s.io/api", "k8s.io/client-go", "sigs.k8s.io/knftables", "github.com/google/nftables", "github.com/florianl/"},
	},
	"pkg/links": {
		ours:      []string{"pkg/runner"},
		forbidden: []string{"k8s.io/api", "k8s.io/client-go", "sigs.k8s.io/knftables", "github.com/google/nftables", "github.com/florianl/"},
	},
	"pkg/domains": {
		ours:      []string{"pkg/policy", "pkg/packet"},
		forbidden: []string{"k8s.io/api/", "k8s.io/client-go", "sigs.k8s.io/knftables", "github.com/mdlayher/", "github.com/google/nftables", "github.com/florianl/"},
	},
	"pkg/resolvers": {
		ours:      []string{"pkg/runner"},
		forbidden: []string{"sigs.k8s.io/knftables", "github.com/mdlayher/", "github.com/google/nftables", "github.com/florianl/"},
	},
	"pkg/status": {
		ours:      []string{"pkg/policy", "pkg/packet"},
		forbidden: []string{"sigs.k8s.io/knftables", "github.com/mdlayher/", "github.com/google/nftables", "github.com/florianl/"},
	},
	"pkg/httpserver": {
		forbidden: []string{"k8s.io/", "sigs.k8s.io/", "github.com/mdlayher/", "github.com/google/nftables", "github.com/florianl/"},
	},
	"pkg/runner": {
		forbidden: []string{"k8s.io/api", "k8s.io/client-go", "sigs.k8s.io/", "github.com/prometheus/"},
	},
}

// directlyForbidden are imports that a package must not write itself, though
// something it may use reaches them.
var directlyForbidden = map[string][]string{
	"pkg/policy":       {"context", "time", "os", "net", "net/http"},
	"pkg/compile":      {"context", "os", "net", "net/http", "io"},
	"pkg/reachability": {"context", "time", "os", "net", "net/http", "io"},
}

// onlyFor are packages that nothing but the given prefixes may import.
var onlyFor = map[string][]string{
	"pkg/agent": {"cmd/", "tests/"},
}

func TestPackagesStayBehindTheirBoundaries(t *testing.T) {
	graph := load(t)
	for name, r := range rules {
		t.Run(name, func(t *testing.T) {
			if graph[module+name] == nil {
				t.Fatalf("package %s does not exist", name)
			}
			via := reach(graph, module+name)
			for dep := range via {
				if own, ok := strings.CutPrefix(dep, module); ok && !slices.Contains(r.ours, own) {
					t.Errorf("%s reaches %s: %s", name, own, path(via, dep))
				}
				if matches(dep, r.forbidden) && !strings.HasPrefix(dep, module) {
					t.Errorf("%s reaches %s: %s", name, dep, path(via, dep))
				}
			}
			for _, dep := range graph[module+name] {
				if slices.Contains(directlyForbidden[name], dep) {
					t.Errorf("%s imports %s", name, dep)
				}
			}
		})
	}
}

func TestOnlyProgramsCompose(t *testing.T) {
	for importer, deps := range load(t) {
		for target, allowed := range onlyFor {
			own := strings.TrimPrefix(importer, module)
			if slices.Contains(deps, module+target) && !matches(own, allowed) {
				t.Errorf("%s imports %s", own, target)
			}
		}
	}
}

func matches(path string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool {
		return path == strings.TrimSuffix(p, "/") || strings.HasPrefix(path, strings.TrimSuffix(p, "/")+"/")
	})
}

// load returns what every package of the module and its dependencies imports.
func load(t *testing.T) map[string][]string {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Imports,Standard", module+"...")
	out, err := cmd.Output()
	if err != nil {
		if exit := new(exec.ExitError); errors.As(err, &exit) {
			t.Fatalf("%v: %v\n%s", cmd, err, exit.Stderr)
		}
		t.Fatalf("%v: %v", cmd, err)
	}
	graph := map[string][]string{}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath string
			Imports    []string
			Standard   bool
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return graph
		} else if err != nil {
			t.Fatal(err)
		}
		if p.Standard {
			p.Imports = nil // what the standard library is made of is its own affair
		}
		graph[p.ImportPath] = append([]string{}, p.Imports...)
	}
}

// reach returns what root reaches, and for each of it who imports it on the way.
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
