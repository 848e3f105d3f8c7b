package suite

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// compared are two runs: what the second one denies is not cut, and it has a kind of change of its
// own.
func compared() []Record {
	return []Record{
		{
			Provider: "fast v1", Date: "2026-11-27",
			Convergence: []Convergence{
				{netpol.ChangeNewPod, 1, Times{0, 0, 0, 0}},
				{netpol.ChangePolicy, 142, Times{0.1, 20, 300, 4000}},
			},
			Revocation: []Revocation{{netpol.ChangePodLabel, 7, 70, 3, Times{5, 5, 60, 70}}},
		},
		{
			Provider: "slow v2", Date: "2026-11-28", Environment: netpol.Environment{Scale: &netpol.Scale{Pods: 1000}},
			Convergence: []Convergence{{"weather", 3, Times{1, 10, 100, 1000}}, {netpol.ChangePolicy, 12, Times{2000, 30000, 70000, 1e12}}},
			Revocation:  []Revocation{{netpol.ChangePodLabel, 9, 0, 90, Times{}}},
		},
	}
}

// parsed returns the picture as its elements. It fails the test unless it is a document of SVG.
func parsed(t *testing.T, records []Record) *element {
	t.Helper()
	text, err := Picture(records)
	if err != nil {
		t.Fatal(err)
	}
	var svg element
	decoder := xml.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(&svg); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	if svg.XMLName != (xml.Name{Space: "http://www.w3.org/2000/svg", Local: "svg"}) {
		t.Fatalf("not SVG:\n%s", text)
	}
	if rest := text[decoder.InputOffset():]; string(rest) != "\n" {
		t.Fatalf("more than one element: %s", rest)
	}
	return &svg
}

// UnmarshalXML reads any element.
func (e *element) UnmarshalXML(d *xml.Decoder, start xml.StartElement) error {
	e.XMLName, e.Attrs = start.Name, start.Attr
	for {
		token, err := d.Token()
		if err != nil {
			return err
		}
		switch token := token.(type) {
		case xml.CharData:
			e.Text += strings.TrimSpace(string(token))
		case xml.StartElement:
			child := &element{}
			if err := child.UnmarshalXML(d, token); err != nil {
				return err
			}
			e.Children = append(e.Children, child)
		case xml.EndElement:
			return nil
		}
	}
}

// all returns the elements below e that have the name and, unless it is empty, the class.
func (e *element) all(name, class string) []*element {
	var found []*element
	for _, child := range e.Children {
		if child.XMLName.Local == name && (class == "" || child.attr("class") == class) {
			found = append(found, child)
		}
		found = append(found, child.all(name, class)...)
	}
	return found
}

func (e *element) attr(name string) string {
	for _, a := range e.Attrs {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

func (e *element) number(t *testing.T, name string) float64 {
	t.Helper()
	n, err := strconv.ParseFloat(e.attr(name), 64)
	if err != nil {
		t.Fatalf("attribute %s of %s: %v", name, e.XMLName.Local, err)
	}
	return n
}

// texts returns the visible texts below e, in their order.
func (e *element) texts() []string {
	var texts []string
	for _, text := range e.all("text", "") {
		texts = append(texts, text.Text)
	}
	return texts
}

func TestPictureHasEveryKindProviderAndCount(t *testing.T) {
	panels := parsed(t, compared()).all("g", "panel")
	if len(panels) != 2 {
		t.Fatalf("%d panels", len(panels))
	}
	const fast, slow = "fast v1, 2026-11-27", "slow v2, 2026-11-28, beside 1000 pods"
	for i, want := range [][]string{
		{"new pod", fast, "1 change", "policy", fast, "142 changes", slow, "12 changes", "weather", slow, "3 changes"},
		{"pod label", fast, "7 changes, 3 kept", slow, "9 changes, 90 kept", "none ended"},
	} {
		texts := slices.DeleteFunc(panels[i].texts()[1:], regexp.MustCompile(`^(0|\d+ m?s)$`).MatchString) // without the title and the axis
		if !slices.Equal(texts, want) {
			t.Errorf("panel %d: got %q, want %q", i, texts, want)
		}
	}
}

// Each mark is where its time is, and none of them leaves the axis.
func TestMarksOfAPictureAreInOrder(t *testing.T) {
	svg := parsed(t, compared())
	panels := svg.all("g", "panel")
	ticks := map[string]float64{}
	for _, text := range panels[0].all("text", "") {
		if text.attr("text-anchor") == "middle" {
			ticks[text.Text] = text.number(t, "x")
		}
	}
	left, right := ticks["0"], ticks["100000 s"]
	if len(ticks) != 10 || left == 0 || right <= left || right >= svg.number(t, "width") {
		t.Fatalf("axis: %v", ticks)
	}
	for i, want := range [][]float64{
		{left, left, left, left},
		{left + 4, 0, 0, 0},
		{0, 0, 0, right},
		{ticks["1 ms"], ticks["10 ms"], ticks["100 ms"], ticks["1 s"]},
	} {
		shapes := panels[0].all("g", "row")[i]
		at := left
		for j, name := range []string{"p50", "p95", "p99", "max"} {
			found := shapes.all("path", name)
			if len(found) != 1 {
				t.Fatalf("row %d has %d marks %s", i, len(found), name)
			}
			var x, y float64
			if _, err := fmt.Sscanf(found[0].attr("transform"), "translate(%f,%f)", &x, &y); err != nil {
				t.Fatal(err)
			}
			if x < at || x > right || (want[j] != 0 && x != want[j]) || y < 0 || y > svg.number(t, "height") {
				t.Errorf("row %d: %s at %g,%g, the one before at %g, want %g", i, name, x, y, at, want[j])
			}
			at = x
		}
	}
	if rows := panels[1].all("g", "row"); len(rows[0].all("path", "p50")) != 1 || len(rows[1].all("path", "")) != 0 {
		t.Error("a row without ended connections has marks, or one with them has none")
	}
}

// Texts do not overlap, not even with the widest letters.
func TestTextsOfAPictureDoNotOverlap(t *testing.T) {
	records := compared()
	records[0].Provider = strings.Repeat("W", 60)
	records[1].Provider = strings.Repeat("世", 60)
	svg := parsed(t, records)
	type span struct{ from, to float64 }
	lines := map[float64][]span{}
	for _, text := range svg.all("text", "") {
		x, long := text.number(t, "x"), 0.0
		for _, r := range text.Text {
			if r > '~' || r == 'W' || r == 'm' {
				long += 12
			} else {
				long += 7.6 // DejaVu Sans is the widest of the usual fonts
			}
		}
		s := span{x, x + long}
		switch text.attr("text-anchor") {
		case "end":
			s = span{x - long, x}
		case "middle":
			s = span{x - long/2, x + long/2}
		}
		y := text.number(t, "y")
		for _, other := range lines[y] {
			if s.from < other.to && other.from < s.to {
				t.Errorf("%q overlaps another text on its line", text.Text)
			}
		}
		lines[y] = append(lines[y], s)
		if s.from < 0 || s.to > svg.number(t, "width") || y > svg.number(t, "height") {
			t.Errorf("%q leaves the picture: %v", text.Text, s)
		}
	}
	last := 0.0
	for _, y := range slices.Sorted(maps.Keys(lines)) {
		if y-last < 12 {
			t.Errorf("lines at %g and %g overlap", last, y)
		}
		last = y
	}
}

// The name of a provider is a flag, so it may be anything.
func TestPictureEscapesNames(t *testing.T) {
	for _, c := range []struct{ name, want string }{
		{`</text><script>alert(1)</script>`, `</text><script>alert(1)</script>, 2026-11-27`},
		{`" onload="alert(1)`, `" onload="alert(1), 2026-11-27`},
		{"]]>&amp;<!--", "]]>&amp;<!--, 2026-11-27"},
		{"nul\x00, bad \xff", "nul\uFFFD, bad \uFFFD, 2026-11-27"},
		{strings.Repeat("é", 41), strings.Repeat("é", 39) + "…, 2026-11-27"},
	} {
		records := compared()[:1]
		records[0].Provider = c.name
		records[0].Convergence[0].Change = netpol.Change(c.name)
		svg := parsed(t, records)
		if !slices.Contains(svg.texts(), c.want) {
			t.Errorf("%q: got %q, want %q", c.name, svg.texts(), c.want)
		}
		if len(svg.all("script", "")) > 0 || svg.attr("onload") != "" || len(svg.all("text", "")) != len(svg.texts()) {
			t.Errorf("%q is not escaped", c.name)
		}
	}
}

func TestPictureWithoutTimesSaysSo(t *testing.T) {
	for name, records := range map[string][]Record{"no records": nil, "no times": {{Provider: "immediate"}}} {
		svg := parsed(t, records)
		const want = "No times were measured."
		if !slices.Contains(svg.texts(), want) || svg.all("desc", "")[0].Text != want || len(svg.all("g", "")) > 0 {
			t.Errorf("%s: got %q", name, svg.texts())
		}
	}
	if svg := parsed(t, []Record{{Convergence: compared()[0].Convergence}}); !slices.Contains(svg.texts(), "not observed") {
		t.Errorf("without a time of revocation: got %q", svg.texts())
	}
}

func TestPictureDescribesItself(t *testing.T) {
	svg := parsed(t, compared())
	titles := svg.all("title", "")
	if svg.attr("role") != "img" || titles[0].Text == "" || svg.all("desc", "")[0].Text == "" {
		t.Error("the picture has no title or description")
	}
	const want = "policy, fast v1, 2026-11-27: 0.1 ms (p50), 20 ms (p95), 300 ms (p99), 4000 ms (max), 142 changes"
	if !slices.ContainsFunc(titles, func(e *element) bool { return e.Text == want }) {
		t.Errorf("no row has the title %q", want)
	}
	if fill := svg.all("rect", "")[0].attr("fill"); fill != "#FFFFFF" {
		t.Errorf("the background is %q, so texts may be illegible on a dark page", fill)
	}
}

func TestEqualRecordsGiveEqualPictures(t *testing.T) {
	first, err := Picture(compared())
	second, err2 := Picture(compared())
	if err != nil || err2 != nil || !bytes.Equal(first, second) {
		t.Errorf("%v, %v; two pictures of the same records differ", err, err2)
	}
}

func TestPictureIsBesideTheReport(t *testing.T) {
	folder := t.TempDir()
	report := filepath.Join(folder, "a (1).md")
	if err := os.WriteFile(report, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	timed := compared()[0]
	for _, c := range []struct {
		report string
		record Record
		want   string
	}{
		{report, timed, filepath.Join(folder, "a (1).svg")},
		{report, Record{}, ""},
		{"new/report.md", timed, "new/report.svg"},
		{"report", timed, "report.svg"},
		{"report.svg", timed, "report.svg.svg"},
		{"", timed, ""},
		{os.DevNull, timed, ""},
	} {
		if got := pictureOf(c.report, c.record); got != c.want {
			t.Errorf("pictureOf(%q) = %q, want %q", c.report, got, c.want)
		}
	}
	r := played(t)
	if err := r.write(options{report: report}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(report)
	if err != nil || !strings.Contains(string(text), "](a%20%281%29.svg)\n") {
		t.Errorf("%v; the report has no link to its picture:\n%s", err, text)
	}
	if _, err := os.Stat(filepath.Join(folder, "a (1).svg")); err != nil {
		t.Error(err)
	}
}
