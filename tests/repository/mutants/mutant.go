package mutants

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// root is where the files of the list are.
const root = "../../.."

// mutant is one fault.
type mutant struct {
	name  string
	suite suite
	edits []edit
}

// suite is the tests that must fail.
type suite struct {
	pkg, run string // import path below the module, and pattern of go test -run
}

// scenarios are the tests that must fail unless a mutant names others.
var scenarios = suite{"tests/model/simulated", "^TestSimulated"}

// sendsPackets reports whether the tests need a lab.
func (s suite) sendsPackets() bool {
	return s.pkg == "tests/packets/attacks" || s.pkg == "tests/packets/netns"
}

// comparesRates reports whether nothing else may run beside the tests.
func (s suite) comparesRates() bool {
	return s.sendsPackets() && (strings.HasPrefix(s.run, "^TestExpensivePolicies") || strings.HasPrefix(s.run, "^TestScrapers"))
}

// edit replaces lines of a file.
type edit struct {
	file        string
	remove, add []string
}

// parse reads the list, whose format it tells itself.
func parse(text string) ([]mutant, error) {
	var all []mutant
	var file string
	var previous byte
	for number, line := range strings.Split(text, "\n") {
		if name, ok := strings.CutPrefix(line, "== "); ok {
			all, file = append(all, mutant{name: name, suite: scenarios}), ""
			continue
		}
		if test, ok := strings.CutPrefix(line, "test "); ok && len(all) > 0 {
			pkg, run, ok := strings.Cut(test, " ")
			if !ok {
				return nil, fmt.Errorf("line %d: %q names no test", number+1, line)
			}
			all[len(all)-1].suite = suite{pkg, run}
			continue
		}
		if path, ok := strings.CutPrefix(line, "file "); ok {
			file, previous = path, 0
			continue
		}
		if line == "" || line[0] == '#' {
			continue
		}
		if len(all) == 0 || file == "" || line[0] != '-' && line[0] != '+' {
			return nil, fmt.Errorf("line %d: %q is out of place", number+1, line)
		}
		all[len(all)-1].take(file, line, previous)
		previous = line[0]
	}
	return all, nil
}

// take adds a line to the last edit, or begins a new one.
func (m *mutant) take(file, line string, previous byte) {
	if line[0] == '-' && previous != '-' || previous == 0 {
		m.edits = append(m.edits, edit{file: file})
	}
	last := &m.edits[len(m.edits)-1]
	if line[0] == '-' {
		last.remove = append(last.remove, line[1:])
	} else {
		last.add = append(last.add, line[1:])
	}
}

// files returns the changed files by their path. Lines that are not there exactly
// once are an error.
func (m mutant) files() (map[string]string, error) {
	files := make(map[string]string)
	for _, e := range m.edits {
		content, ok := files[e.file]
		if !ok {
			bytes, err := os.ReadFile(filepath.Join(root, e.file))
			if err != nil {
				return nil, err
			}
			content = string(bytes)
		}
		old := "\n" + strings.Join(e.remove, "\n") + "\n"
		if n := strings.Count(content, old); n != 1 {
			return nil, fmt.Errorf("%s has these lines %d times:%s", e.file, n, old)
		}
		files[e.file] = strings.Replace(content, old, "\n"+strings.Join(e.add, "\n")+"\n", 1)
	}
	return files, nil
}
