package manifestyaml

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestCommentsHaveTheirLines(t *testing.T) {
	const text = `# about the file

# above one
# and more
kind: A # at the kind
# above the spec
spec:
  # above a
  a: 1 # at a
  b:
  # above the item
  - c # at c
  - "d # no comment"
  # below d
---
# above two
kind: B
text: |
  # no comment
---
- # no comment of a document of its own
  kind: C
  # above d
  d: 1
`
	var got []string
	for d, err := range Documents([]byte(text)) {
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range d.Comments() {
			got = append(got, fmt.Sprintf("%d: %s", c.Line, c.Text))
		}
	}
	want := []string{
		"1: about the file", "3: above one", "4: and more", "5: at the kind", "6: above the spec", "8: above a", "9: at a",
		"11: above the item", "12: at c", "14: below d", "16: above two",
		"21: no comment of a document of its own", "23: above d",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A file is split into lines once, however many documents it has.
func TestDocumentsShareTheLinesOfTheirFile(t *testing.T) {
	for _, text := range []string{"a: 1\n---\nb: 1\n", "kind: List\nitems:\n- a: 1\n- b: 1\n"} {
		lines := map[*string]bool{}
		for d, err := range Documents([]byte(text)) {
			if err != nil {
				t.Fatal(err)
			}
			items, err := d.Items(Header{})
			if err != nil {
				items = nil // no list
			}
			for _, d := range append(items, d) {
				lines[&d.lines()[0]] = true
			}
		}
		if len(lines) != 1 {
			t.Errorf("%q was split %d times", text, len(lines))
		}
	}
}
