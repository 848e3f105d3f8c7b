package neighbours

import (
	"os"
	"strings"
	"testing"
)

// TestDocumented compares the table in docs/install/README.md with the neighbours in this
// package.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/install/README.md")
	if err != nil {
		t.Fatal(err)
	}
	const head = "| neighbour | what holds | what is reported |\n|---|---|---|\n"
	_, rows, ok := strings.Cut(string(text), head)
	if !ok {
		t.Fatal("there is no table of neighbours")
	}
	rows, _, _ = strings.Cut(rows, "\n\n")
	var want []string
	for _, nb := range neighbours {
		want = append(want, strings.ReplaceAll("| "+nb.name+" | "+nb.holds+" | "+nb.reported+" |", "|  |", "| |"))
	}

	if want := strings.Join(want, "\n"); rows != want {
		t.Errorf("the table is\n%s\nwant\n%s", rows, want)
	}
}
