package neighbours

import (
	"os"
	"strings"
	"testing"
)

// TestDocumented compares the table in docs/install/README.md with the neighbours in this
// package. A row has all neighbours of which the same holds.
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
	names := map[string][]string{} // by the rest of the row
	for _, nb := range neighbours {
		rest := strings.ReplaceAll(" | "+nb.holds+" | "+nb.reported+" |", "|  |", "| |")
		if names[rest] == nil {
			want = append(want, rest)
		}
		names[rest] = append(names[rest], nb.name)
	}
	for i, rest := range want {
		want[i] = "| " + strings.Join(names[rest], "; ") + rest
	}

	if want := strings.Join(want, "\n"); rows != want {
		t.Errorf("the table is\n%s\nwant\n%s", rows, want)
	}
}
