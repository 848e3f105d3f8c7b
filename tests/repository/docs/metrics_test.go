package docs

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write what is generated into docs")

const metricsPage = "docs/metrics.md"

var (
	metricName = regexp.MustCompile(`^(?:netpol|nfqueue|packet)_[a-z_]+$`)
	// metricTable is a generated table. The comment that begins it lists folders of pkg.
	metricTable = regexp.MustCompile(`(?s)<!-- metrics of ([a-z/ ]+) -->\n.*?<!-- end -->\n`)
	inBackticks = regexp.MustCompile("`((?:netpol|nfqueue|packet)_[a-z_]+)`")
	typeOfOpts  = regexp.MustCompile(`^(Counter|Gauge|Histogram|Summary)Opts$`)
	typeOfValue = regexp.MustCompile(`^(Counter|Gauge)Value$`)
)

// latencies have types that their descriptions do not name.
var latencies = map[string]string{"packet_process_time": "histogram", "packet_process_duration_microseconds": "summary"}

// docs/metrics.md has the tables of all metrics that the code of pkg makes.
func TestMetricsAreDocumented(t *testing.T) {
	doc, s := read(t, metricsPage), readMetrics(t)
	want := metricTable.ReplaceAllStringFunc(doc, func(table string) string {
		folders := metricTable.FindStringSubmatch(table)[1]
		out := "<!-- metrics of " + folders + " -->\n\n|metric|type, labels|meaning|\n|---|---|---|\n"
		for folder := range strings.FieldsSeq(folders) {
			out += s.rows[folder]
			delete(s.rows, folder)
		}
		return out + "\n<!-- end -->\n"
	})
	for folder := range s.rows {
		t.Errorf("%s has no table of the metrics of pkg/%s", metricsPage, folder)
	}
	for _, name := range s.names {
		if !s.described[name] {
			t.Errorf("%s is not found: write its name and help where it is made", name)
		}
	}
	for _, m := range inBackticks.FindAllStringSubmatch(doc, -1) {
		if !slices.Contains(s.names, m[1]) {
			t.Errorf("%s describes %s, which does not exist", metricsPage, m[1])
		}
	}
	switch {
	case len(s.names) < 50:
		t.Fatalf("found %d metrics in the code: the search is wrong", len(s.names))
	case want == doc || t.Failed():
	case *update:
		if err := os.WriteFile(filepath.Join(root, metricsPage), []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s is out of date: make docs", metricsPage)
	}
}

// TestMetricsAreCounted: a test names each metric, or one of its package reads what holds it.
func TestMetricsAreCounted(t *testing.T) {
	named := sources(t, "pkg", isTest) + sources(t, "cmd", isTest) + sources(t, "tests/cluster/integration", isTest) +
		sources(t, "tests/packets", func(string) bool { return true })
	s, beside := readMetrics(t), map[string]string{} // tests by folder
	for name := range s.described {
		folder, variable, _ := strings.Cut(s.variables[name], " ")
		if _, read := beside[folder]; !read {
			beside[folder] = sources(t, "pkg/"+folder, isTest)
		}
		reads := variable != "" && regexp.MustCompile(`\.`+variable+`\b`).MatchString(beside[folder])
		if !reads && !regexp.MustCompile(`\b`+name+`\b`).MatchString(named) {
			t.Errorf("no test counts %s: add it to one of pkg/%s, or remove the metric", name, folder)
		}
	}
}

// variableOf returns the field or variable that the innermost of parents is assigned to.
func variableOf(parents []ast.Node) string {
	for _, n := range slices.Backward(parents) {
		switch n := n.(type) {
		case *ast.KeyValueExpr:
			return nameOf(n.Key)
		case *ast.AssignStmt:
			return nameOf(n.Lhs[0])
		case *ast.BlockStmt:
			return ""
		}
	}
	return ""
}

// metricsSource is what the code says about metrics.
type metricsSource struct {
	rows      map[string]string // rows of the table by folder
	described map[string]bool   // the metrics in rows
	variables map[string]string // what holds a metric, as "folder field"
	names     []string          // all literals that are names of metrics

	defined map[string]ast.Expr // values of a file by name
}

func readMetrics(t *testing.T) *metricsSource {
	t.Helper()
	s := &metricsSource{rows: map[string]string{}, described: map[string]bool{}, variables: map[string]string{}}
	pkg := filepath.Join(root, "pkg")
	err := filepath.WalkDir(pkg, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || isTest(path) {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		folder, err := filepath.Rel(pkg, filepath.Dir(path))
		s.readFile(file, folder)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *metricsSource) readFile(file *ast.File, folder string) {
	s.defined = map[string]ast.Expr{}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			for i, value := range n.Values {
				s.defined[n.Names[i].Name] = value
			}
		case *ast.AssignStmt:
			if name, ok := n.Lhs[0].(*ast.Ident); ok && len(n.Rhs) == 1 {
				s.defined[name.Name] = n.Rhs[0]
			}
		case *ast.BasicLit:
			if name := s.text(n); metricName.MatchString(name) {
				s.names = append(s.names, name)
			}
		}
		return true
	})
	var parents []ast.Node
	ast.Inspect(file, func(n ast.Node) bool {
		if n == nil {
			parents = parents[:len(parents)-1]
			return true
		}
		switch n := n.(type) {
		case *ast.CompositeLit: // prometheus.CounterOpts{Name: …, Help: …}, and labels in the call around it
			if kind := typeOfOpts.FindStringSubmatch(nameOf(n.Type)); kind != nil {
				fields := fieldsOf(n)
				labels := s.list(fields["ConstLabels"])
				if call, ok := parents[len(parents)-1].(*ast.CallExpr); ok && len(call.Args) == 2 {
					labels = append(labels, s.list(call.Args[1])...)
				}
				s.add(folder, kind[1], s.text(fields["Name"]), s.text(fields["Help"]), labels)
				s.variables[s.text(fields["Name"])] = folder + " " + variableOf(parents)
			}
		case *ast.CallExpr: // prometheus.NewDesc(name, help, labels, nil), perhaps beside a prometheus.ValueType
			if nameOf(n.Fun) == "NewDesc" {
				name := s.text(n.Args[0])
				s.add(folder, typeBeside(parents, name), name, s.text(n.Args[1]), s.list(n.Args[2]))
			}
		}
		parents = append(parents, n)
		return true
	})
}

// add adds the row of a metric, once.
func (s *metricsSource) add(folder, kind, name, help string, labels []string) {
	if !metricName.MatchString(name) || help == "" || kind == "" || s.described[name] {
		return
	}
	s.described[name] = true
	kind = strings.ToLower(kind)
	if len(labels) > 0 {
		kind += " `" + strings.Join(labels, ",") + "`"
	}
	s.rows[folder] += fmt.Sprintf("|`%s`|%s|%s|\n", name, kind, help)
}

// text evaluates an expression of strings.
func (s *metricsSource) text(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, _ := strconv.Unquote(e.Value)
		return text
	case *ast.BinaryExpr:
		return s.text(e.X) + s.text(e.Y)
	case *ast.Ident:
		return s.text(s.defined[e.Name])
	}
	return ""
}

// list evaluates a list of strings, or the keys of a map.
func (s *metricsSource) list(e ast.Expr) []string {
	var list []string
	switch e := e.(type) {
	case *ast.Ident:
		return s.list(s.defined[e.Name])
	case *ast.CompositeLit:
		for _, element := range e.Elts {
			if pair, ok := element.(*ast.KeyValueExpr); ok {
				element = pair.Key
			}
			list = append(list, s.text(element))
		}
	}
	return list
}

// typeBeside is the type of a metric without options: that of the value in the same row of a
// table, or what the name says.
func typeBeside(parents []ast.Node, name string) string {
	if row, ok := parents[len(parents)-1].(*ast.CompositeLit); ok {
		for _, e := range row.Elts {
			if kind := typeOfValue.FindStringSubmatch(nameOf(e)); kind != nil {
				return kind[1]
			}
		}
	}
	if strings.HasSuffix(name, "_total") {
		return "counter"
	}
	return latencies[name]
}

// nameOf is the name behind the dot.
func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.Ident:
		return e.Name
	}
	return ""
}

func fieldsOf(lit *ast.CompositeLit) map[string]ast.Expr {
	fields := map[string]ast.Expr{}
	for _, e := range lit.Elts {
		if pair, ok := e.(*ast.KeyValueExpr); ok {
			if key, ok := pair.Key.(*ast.Ident); ok {
				fields[key.Name] = pair.Value
			}
		}
	}
	return fields
}
