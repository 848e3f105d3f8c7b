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

	"sigs.k8s.io/kube-network-policies/tests/netpol/suite"
)

// Files that the suite's flag -results has written, and the page with the table of them.
const (
	resultsFolder = "docs/testing/results"
	resultsPage   = "docs/testing/results.md"
)

var resultsTable = regexp.MustCompile(`(?s)<!-- results -->\n.*?<!-- end -->\n`)

// docs/testing/results.md has a row for each file of results.
func TestResultsTable(t *testing.T) {
	var out strings.Builder
	out.WriteString("<!-- results -->\n\n| provider | on | date | scenarios | cells | right after | established | gone after |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, r := range readResults(t) {
		out.WriteString(resultsRow(r))
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
		if r.Provider == "" || r.Date == "" || r.Scenarios == 0 || len(r.Environment.Kernels) == 0 {
			t.Errorf("%s lacks the provider, the date, scenarios or the kernel", file)
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
	var right, gone []string
	for _, c := range r.Convergence {
		right = append(right, kindTimes(string(c.Change), c.Times))
	}
	cut, kept := 0, 0
	for _, c := range r.Revocation {
		cut, kept = cut+c.Cut, kept+c.Kept
		if c.Cut > 0 {
			gone = append(gone, kindTimes(string(c.Change), c.Times))
		}
	}
	established := "not observed"
	if cut+kept > 0 {
		established = fmt.Sprintf("cut: %d, kept: %d", cut, kept)
	}
	return fmt.Sprintf("| %s | %s | %s | %d of %d | %d | %s | %s | %s |\n", r.Provider, strings.Join(on, ", "), r.Date,
		r.Scenarios-len(r.Failed), r.Scenarios, r.Cells, strings.Join(right, "<br>"), established, strings.Join(gone, "<br>"))
}

// kindTimes returns, for example, "policy: 315, 681, 904".
func kindTimes(change string, t suite.Times) string {
	return fmt.Sprintf("%s: %d, %d, %d", change, t.P50, t.P99, t.Max)
}
