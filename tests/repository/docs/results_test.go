package docs

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
	"sigs.k8s.io/kube-network-policies/tests/netpol/scenarios"
	"sigs.k8s.io/kube-network-policies/tests/netpol/suite"
)

// Files that the suite's flag -results has written, and the page with the table of them.
const (
	resultsFolder = "docs/testing/results"
	resultsPage   = "docs/testing/comparison.md"
)

var resultsTable = regexp.MustCompile(`(?s)<!-- results -->\n.*?<!-- end -->\n`)

// docs/testing/comparison.md has a row for each file of results, and what differs.
func TestResultsTable(t *testing.T) {
	var out strings.Builder
	out.WriteString("<!-- results -->\n\n| provider | on | date | as expected | not supported | wrong cells | established |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	records := readResults(t)
	for _, r := range records {
		out.WriteString(resultsRow(r))
	}
	for _, r := range records {
		out.WriteString(differences(r))
	}
	out.WriteString("\n<!-- end -->\n")
	doc := read(t, resultsPage)
	want := resultsTable.ReplaceAllLiteralString(doc, out.String())
	switch {
	case !resultsTable.MatchString(doc):
		t.Errorf("%s has no place for the table", resultsPage)
	case *update:
		if err := os.WriteFile(filepath.Join(root, resultsPage), []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	case want != doc:
		t.Errorf("%s differs from the files of %s: make docs writes\n%s", resultsPage, resultsFolder, &out)
	}
}

// readResults returns the records in the order of providers and dates.
func readResults(t *testing.T) []suite.Record {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, resultsFolder, "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files in %s, %v", len(files), resultsFolder, err)
	}
	var records []suite.Record
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var r suite.Record
		decoder := json.NewDecoder(strings.NewReader(string(text)))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&r); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if r.Provider == "" || r.Date == "" || r.Played == 0 || len(r.Environment.Kernels) == 0 {
			t.Errorf("%s lacks the provider, the date, played scenarios or the kernel", file)
		}
		records = append(records, r)
	}
	slices.SortFunc(records, func(a, b suite.Record) int {
		return cmp.Or(strings.Compare(a.Provider, b.Provider), strings.Compare(a.Date, b.Date), strings.Compare(a.Backend, b.Backend))
	})
	return records
}

func resultsRow(r suite.Record) string {
	on := append([]string{r.Backend}, r.Environment.Systems...)
	if r.Environment.Kubernetes != "" {
		on = append(on, "Kubernetes "+r.Environment.Kubernetes)
	}
	on = append(on, "Linux "+strings.Join(r.Environment.Kernels, ", "))
	if n := r.Environment.PodSubnets; n > 1 {
		on = append(on, fmt.Sprintf("%d pod subnets for each node", n))
	}
	if r.Environment.Scale != nil {
		on = append(on, "beside "+r.Environment.Scale.String())
	}
	wrong := 0
	for _, cells := range r.WrongCells {
		wrong += cells
	}
	cut, kept := 0, 0
	for _, c := range r.Revocation {
		cut, kept = cut+c.Cut, kept+c.Kept
	}
	established := "not observed"
	if cut+kept > 0 {
		established = fmt.Sprintf("cut: %d, kept: %d", cut, kept)
	}
	return fmt.Sprintf("| %s | %s | %s | %d of %d | %d | %d of %d | %s |\n", r.Provider, strings.Join(on, ", "), r.Date,
		r.Played-len(r.Failed), r.Played, r.Scenarios-r.Played, wrong, r.Cells, established)
}

// noProvider is the name of the negative control.
const noProvider = "none"

// differences lists the scenarios that were not as expected, with the statements that they test. The
// negative control has no list.
func differences(r suite.Record) string {
	if len(r.Failed) == 0 || r.Provider == noProvider {
		return ""
	}
	var out strings.Builder
	fmt.Fprintf(&out, "\nNot as expected with %s on %s:\n\n", r.Provider, r.Backend)
	for _, name := range r.Failed {
		what := "no result"
		if wrong := r.WrongCells[name]; wrong > 0 {
			what = fmt.Sprintf("wrong cells: %d", wrong)
		}
		i := slices.IndexFunc(allScenarios, func(s netpol.Scenario) bool { return s.Name == name })
		if i >= 0 {
			what = strings.Join(allScenarios[i].Statements, ", ") + "; " + what
		}
		fmt.Fprintf(&out, "- %s (%s)\n", name, what)
	}
	return out.String()
}

var allScenarios = scenarios.All()

// The suite fails where nothing enforces policies, or it would show nothing about those who do.
func TestNegativeControl(t *testing.T) {
	controls := 0
	for _, r := range readResults(t) {
		if r.Provider != noProvider {
			continue
		}
		controls++
		if wrong := len(r.WrongCells); wrong < r.Played/2 {
			t.Errorf("without a provider only %d of %d scenarios have wrong cells", wrong, r.Played)
		}
	}
	if controls == 0 {
		t.Errorf("no file of %s has the provider %s", resultsFolder, noProvider)
	}
}
