package mutants

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// active is the variable of each changed package that has the number of the mutant that
// the environment variable MUTANT asks for, and 0 without one. With recordReaches, no mutant
// is active, and the file that MUTANT_REACHES names gets the numbers of those whose functions
// are called.
const (
	active        = "activeMutant"
	recordReaches = -1
)

const declareActive = `package %s

import (
	"os"
	"strconv"
	"sync/atomic"
)

var (
	` + active + `, _ = strconv.Atoi(os.Getenv("MUTANT"))
	reachedMutants  [10000]atomic.Bool
	reachesFile, _  = os.OpenFile(os.Getenv("MUTANT_REACHES"), os.O_APPEND|os.O_WRONLY, 0)
)

func reachMutant(number int) {
	if !reachedMutants[number].Swap(true) {
		reachesFile.WriteString(strconv.Itoa(number) + "\n")
	}
}
`

// combine returns the changed files of all mutants by their path, so that one build has
// them all: beside each function that mutants change are its changed copies, and it calls
// the one that is active. The mutants are numbered from 1, as they are in the list. Only
// the bodies of functions, and imports, can be changed.
func combine(all []mutant) (map[string]string, error) {
	sources := make(map[string]*source)
	for i, m := range all {
		changed, err := m.files()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.name, err)
		}
		for file, content := range changed {
			if sources[file] == nil {
				original, err := os.ReadFile(filepath.Join(root, file))
				if err != nil {
					return nil, err
				}
				if sources[file], err = read(string(original)); err != nil {
					return nil, err
				}
			}
			if err := sources[file].add(i+1, content); err != nil {
				return nil, fmt.Errorf("%s: %s: %w", m.name, file, err)
			}
		}
	}
	files := make(map[string]string)
	for file, s := range sources {
		files[file] = s.combined()
		files[path.Join(path.Dir(file), "zz_active_mutant.go")] = fmt.Sprintf(declareActive, s.file.Name.Name)
	}
	return files, nil
}

// source is a parsed file, and what is to be inserted into it.
type source struct {
	text    string
	file    *ast.File
	base    token.Pos
	inserts map[int]string // by the offset
	copies  strings.Builder
	imports map[string]bool // those that only mutants need
}

func read(text string) (*source, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "", text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	return &source{text: text, file: file, base: file.FileStart, inserts: make(map[int]string), imports: make(map[string]bool)}, nil
}

func (s *source) offset(pos token.Pos) int { return int(pos - s.base) }

func (s *source) of(from, to token.Pos) string { return s.text[s.offset(from):s.offset(to)] }

// functions returns the functions of the file by their receiver and name, and the text of
// its other declarations without imports.
func (s *source) functions() (map[string]*ast.FuncDecl, string) {
	functions := make(map[string]*ast.FuncDecl)
	var others strings.Builder
	for _, d := range s.file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			functions[s.of(d.Pos(), d.Body.Pos())] = d
		case *ast.GenDecl:
			if d.Tok != token.IMPORT {
				others.WriteString(s.of(d.Pos(), d.End()))
			}
		}
	}
	return functions, others.String()
}

// add adds the copies of the functions that a mutant changes.
func (s *source) add(number int, content string) error {
	changed, err := read(content)
	if err != nil {
		return err
	}
	before, others := s.functions()
	after, changedOthers := changed.functions()
	if others != changedOthers || !maps.EqualFunc(before, after, func(_, _ *ast.FuncDecl) bool { return true }) {
		return fmt.Errorf("the mutant changes more than the body of functions")
	}
	for _, i := range changed.file.Imports {
		if !slices.ContainsFunc(s.file.Imports, func(j *ast.ImportSpec) bool { return j.Path.Value == i.Path.Value }) {
			s.imports[i.Path.Value] = true
		}
	}
	for signature, f := range before {
		g := after[signature]
		if s.of(f.Body.Pos(), f.Body.End()) == changed.of(g.Body.Pos(), g.Body.End()) {
			continue
		}
		name := fmt.Sprintf("%sMutant%d", f.Name.Name, number)
		fmt.Fprintf(&s.copies, "\n%s%s%s\n", changed.of(g.Pos(), g.Name.Pos()), name, changed.of(g.Name.End(), g.End()))
		s.inserts[s.offset(f.Body.Lbrace)+1] += fmt.Sprintf("\nif %[1]s == %[2]d { %[3]s }\nif %[1]s < 0 { reachMutant(%[2]d) }", active, number, s.call(f, name))
	}
	return nil
}

// call returns the statements by which a function calls its copy. It names those
// parameters that have no name.
func (s *source) call(f *ast.FuncDecl, name string) string {
	var arguments []string
	for i, p := range f.Type.Params.List {
		if len(p.Names) == 0 {
			argument := fmt.Sprintf("argument%d", i)
			s.inserts[s.offset(p.Pos())] = argument + " "
			arguments = append(arguments, argument)
		}
		for j, n := range p.Names {
			argument := n.Name
			if argument == "_" { // becomes _i_j
				s.inserts[s.offset(n.End())] = fmt.Sprintf("%d_%d", i, j)
				argument = fmt.Sprintf("_%d_%d", i, j)
			}
			arguments = append(arguments, argument)
		}
		if _, variadic := p.Type.(*ast.Ellipsis); variadic {
			arguments[len(arguments)-1] += "..."
		}
	}
	if f.Recv != nil {
		receiver := "receiver"
		if names := f.Recv.List[0].Names; len(names) > 0 {
			receiver = names[0].Name
		} else {
			s.inserts[s.offset(f.Recv.List[0].Pos())] = receiver + " "
		}
		name = receiver + "." + name
	} else if f.Type.TypeParams != nil {
		var types []string
		for _, p := range f.Type.TypeParams.List {
			for _, n := range p.Names {
				types = append(types, n.Name)
			}
		}
		name += "[" + strings.Join(types, ", ") + "]"
	}
	call := name + "(" + strings.Join(arguments, ", ") + ")"
	if f.Type.Results.NumFields() == 0 {
		return call + "; return"
	}
	return "return " + call
}

// combined returns the text with everything inserted.
func (s *source) combined() string {
	for _, i := range slices.Sorted(maps.Keys(s.imports)) {
		s.inserts[s.offset(s.file.Name.End())] += "\nimport " + i
	}
	var b strings.Builder
	last := 0
	for _, offset := range slices.Sorted(maps.Keys(s.inserts)) {
		b.WriteString(s.text[last:offset])
		b.WriteString(s.inserts[offset])
		last = offset
	}
	b.WriteString(s.text[last:])
	b.WriteString(s.copies.String())
	return b.String()
}
