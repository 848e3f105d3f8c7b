package suite

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// Picture draws the times of records as SVG: a panel for convergence and one for revocation, in
// each of them the kinds of change, and for each kind a row of each record that has it. Equal
// records give equal bytes, so that a file of it can be compared with its results.
func Picture(records []Record) ([]byte, error) {
	kinds := kindsOf(records)
	panels := []panel{
		{"Convergence: from a change until every table was right", convergenceRows(kinds, records)},
		{"Revocation: from a change until the last established connection was gone that it denies", revocationRows(kinds, records)},
	}
	text, err := xml.MarshalIndent(draw(panels), "", " ")
	return append(text, '\n'), err
}

// panel has the rows of one measure.
type panel struct {
	title string
	rows  []row
}

// row is what a record says about a kind of change.
type row struct {
	change netpol.Change
	label  string
	color  string
	count  string
	times  *Times // nil if no connection ended
}

// colors are dark enough for text on white. They only help: each row also has its label.
var colors = []string{"#0072B2", "#B34E00", "#00735A", "#A04080", "#000000"}

// kindsOf returns the kinds of change in the order of the suite. Records of another version may have
// more, which come last.
func kindsOf(records []Record) []netpol.Change {
	kinds := []netpol.Change{netpol.ChangeNewPod, netpol.ChangeDeletedPod, netpol.ChangeNamespaceLabel, netpol.ChangePodLabel, netpol.ChangePolicy}
	add := func(kind netpol.Change) {
		if !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	for _, r := range records {
		for _, c := range r.Convergence {
			add(c.Change)
		}
		for _, c := range r.Revocation {
			add(c.Change)
		}
	}
	return kinds
}

func convergenceRows(kinds []netpol.Change, records []Record) []row {
	var rows []row
	for _, kind := range kinds {
		for i, r := range records {
			for _, c := range r.Convergence {
				if c.Change == kind {
					rows = append(rows, row{kind, label(r), colors[i%len(colors)], count(c.Changes, "change"), &c.Times})
				}
			}
		}
	}
	return rows
}

func revocationRows(kinds []netpol.Change, records []Record) []row {
	var rows []row
	for _, kind := range kinds {
		for i, r := range records {
			for _, c := range r.Revocation {
				if c.Change != kind {
					continue
				}
				row := row{kind, label(r), colors[i%len(colors)], count(c.Changes, "change"), &c.Times}
				if c.Kept > 0 {
					row.count += fmt.Sprintf(", %d kept", c.Kept)
				}
				if c.Cut == 0 {
					row.times = nil // they are zero, as if all had ended at once
				}
				rows = append(rows, row)
			}
		}
	}
	return rows
}

// label returns, for example, "kube-router v2.1.0, 2026-11-28".
func label(r Record) string {
	text := shortened(cmp.Or(r.Provider, r.Backend)) + ", " + r.Date
	if scale := r.Environment.Scale; scale != nil {
		text += fmt.Sprintf(", beside %d pods", scale.Pods)
	}
	return text
}

// shortened leaves room for the marks beside a long name.
func shortened(name string) string {
	const most = 40
	if runes := []rune(name); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return name
}

// pictureOf returns the file of the picture in a report, "" if it has none: backends whose changes
// are effective at once have no times, and there is no place beside a pipe.
func pictureOf(report string, r Record) string {
	if report == "" || len(r.Convergence)+len(r.Revocation) == 0 {
		return ""
	}
	info, err := os.Stat(report)
	if err == nil && !info.Mode().IsRegular() {
		return ""
	}
	extension := filepath.Ext(report)
	if extension == ".svg" {
		extension = "" // not the file of the report itself
	}
	return strings.TrimSuffix(report, extension) + ".svg"
}

// Sizes, in pixels.
const (
	margin      = 16
	line        = 18 // height of a line of text and of a row
	fontSize    = 12
	zeroWidth   = 40 // of the axis below a millisecond
	decadeWidth = 90 // of each power of ten above
)

// width is at least what a text needs, whatever sans-serif font the viewer has.
func width(text string) int {
	tenths := 0
	for _, r := range text {
		switch {
		case r > '~':
			tenths += 160 // may be an ideograph or an emoji
		case strings.ContainsRune(" ,.:-/()ijlftr", r):
			tenths += 50
		case r >= 'A' && r <= 'Z' || strings.ContainsRune("mw@%&", r):
			tenths += 120
		default:
			tenths += 77
		}
	}
	return tenths / 10
}

// axis is linear below a millisecond, so that it has a zero, and logarithmic above.
type axis struct{ left, decades int }

// newAxis returns an axis up to the longest time, to ten seconds at least and a day at most.
func newAxis(left int, panels []panel) axis {
	longest := 0.0
	for _, p := range panels {
		for _, r := range p.rows {
			if r.times != nil {
				longest = max(longest, r.times.Max)
			}
		}
	}
	a := axis{left, 4}
	for limit := 1e4; limit < longest && a.decades < 8; limit *= 10 {
		a.decades++
	}
	return a
}

func (a axis) right() int { return a.left + zeroWidth + decadeWidth*a.decades }

// x returns where a time in milliseconds is. What is beyond the axis is at its end.
func (a axis) x(ms float64) string {
	x := float64(a.left) + zeroWidth*min(max(ms, 0), 1) + decadeWidth*math.Log10(max(ms, 1))
	return strconv.FormatFloat(math.Round(10*min(x, float64(a.right())))/10, 'f', -1, 64)
}

// ticks returns the times at which the axis has a number.
func (a axis) ticks() []float64 {
	ticks := []float64{0}
	for ms := 1.0; len(ticks) < a.decades+2; ms *= 10 {
		ticks = append(ticks, ms)
	}
	return ticks
}

// duration returns, for example, "100 ms" or "10 s".
func duration(ms float64) string {
	switch {
	case ms == 0:
		return "0"
	case ms < 1000:
		return fmt.Sprintf("%g ms", ms)
	}
	return fmt.Sprintf("%.0f s", ms/1000)
}

// element is one of SVG. encoding/xml escapes its texts and attributes.
type element struct {
	XMLName  xml.Name
	Attrs    []xml.Attr `xml:",any,attr"`
	Text     string     `xml:",chardata"`
	Children []*element
}

// add adds a child, with names and values of attributes in turn.
func (e *element) add(name string, attributes ...any) *element {
	child := &element{XMLName: xml.Name{Local: name}}
	child.set(attributes...)
	e.Children = append(e.Children, child)
	return child
}

func (e *element) set(attributes ...any) {
	for i := 0; i < len(attributes); i += 2 {
		e.Attrs = append(e.Attrs, xml.Attr{Name: xml.Name{Local: attributes[i].(string)}, Value: fmt.Sprint(attributes[i+1])})
	}
}

// write adds a text whose base line begins at x and y, or ends there with a text-anchor.
func (e *element) write(x, y any, text string, attributes ...any) {
	child := e.add("text", "x", x, "y", y)
	child.set(attributes...)
	child.Text = text
}

// mark is the symbol of a percentile.
type mark struct {
	name string
	path string // around 0,0
	of   func(Times) float64
}

// marks are beside each other where they are at the same time: p95 above the range, p99 below it.
var marks = []mark{
	{"p50", "M-3,0a3,3 0 1 0 6,0a3,3 0 1 0 -6,0Z", func(t Times) float64 { return t.P50 }},
	{"p95", "M0,-1L-3.5,-7H3.5Z", func(t Times) float64 { return t.P95 }},
	{"p99", "M0,1L-3.5,7H3.5Z", func(t Times) float64 { return t.P99 }},
	{"max", "M0,-7V7", func(t Times) float64 { return t.Max }},
}

func (m mark) draw(parent *element, x string, y int) {
	parent.add("path", "class", m.name, "transform", fmt.Sprintf("translate(%s,%d)", x, y), "d", m.path)
}

// columns are where the parts of rows are.
type columns struct {
	label int // where labels end
	axis  axis
	count int // where counts begin
	width int // of the picture
}

func columnsOf(panels []panel) columns {
	kinds, labels, counts, titles := 0, 0, 0, 0
	for _, p := range panels {
		titles = max(titles, width(p.title))
		for _, r := range p.rows {
			kinds, labels, counts = max(kinds, width(string(r.change))), max(labels, width(r.label)), max(counts, width(r.count))
		}
	}
	c := columns{label: 2*margin + kinds + labels}
	c.axis = newAxis(c.label+margin, panels)
	c.count = c.axis.right() + margin
	c.width = max(c.count+counts, titles) + margin
	return c
}

// draw returns the root element. The background is white on dark pages, too.
func draw(panels []panel) *element {
	const title = "How long changes took to become effective"
	c := columnsOf(panels)
	svg := &element{XMLName: xml.Name{Local: "svg"}}
	svg.add("title", "id", "title").Text = title
	desc := svg.add("desc", "id", "desc")
	svg.add("rect", "width", "100%", "height", "100%", "fill", "#FFFFFF")
	y := margin + line
	svg.write(margin, y, title, "font-size", 16, "font-weight", "bold")
	y += line
	if len(panels[0].rows)+len(panels[1].rows) == 0 {
		desc.Text = "No times were measured."
		svg.write(margin, y, desc.Text)
	} else {
		desc.Text = "For each kind of change and each run a range from the median to the longest time, on a logarithmic axis, and the number of changes."
		drawLegend(svg, y)
		for _, p := range panels {
			y = c.drawPanel(svg, p, y+line)
		}
	}
	height := y + margin
	svg.set("xmlns", "http://www.w3.org/2000/svg", "width", c.width, "height", height, "viewBox", fmt.Sprintf("0 0 %d %d", c.width, height),
		"role", "img", "aria-labelledby", "title desc", "font-family", "Helvetica, Arial, sans-serif", "font-size", fontSize, "fill", "#222222")
	return svg
}

func drawLegend(svg *element, y int) {
	legend := svg.add("g", "class", "legend")
	x := margin
	for _, m := range marks {
		m.draw(legend.add("g", "fill", colors[0], "stroke", colors[0]), strconv.Itoa(x+5), y-4)
		legend.write(x+16, y, m.name)
		x += 2*margin + width(m.name)
	}
}

// drawPanel draws a panel below y and returns where it ends.
func (c columns) drawPanel(svg *element, p panel, y int) int {
	group := svg.add("g", "class", "panel")
	y += line
	group.write(margin, y, p.title, "font-weight", "bold")
	if len(p.rows) == 0 {
		y += line
		group.write(margin, y, "not observed")
		return y
	}
	top := y + line/2
	bottom := top + line*len(p.rows)
	for _, ms := range c.axis.ticks() {
		x := c.axis.x(ms)
		group.add("path", "stroke", "#DDDDDD", "d", fmt.Sprintf("M%s,%dV%d", x, top, bottom+4))
		group.write(x, bottom+line, duration(ms), "text-anchor", "middle")
	}
	kind := netpol.Change("")
	for i, r := range p.rows {
		y += line
		if i == 0 || r.change != kind {
			kind = r.change
			group.add("path", "stroke", "#BBBBBB", "d", fmt.Sprintf("M%d,%dH%d", margin, top+line*i, c.width-margin))
			group.write(margin, y+4, string(kind))
		}
		c.drawRow(group, r, y)
	}
	return bottom + line
}

// drawRow draws a row whose middle is y.
func (c columns) drawRow(panel *element, r row, y int) {
	group := panel.add("g", "class", "row")
	group.add("title").Text = r.String()
	group.write(c.label, y+4, r.label, "text-anchor", "end", "fill", r.color)
	group.write(c.count, y+4, r.count)
	if r.times == nil {
		group.write(c.axis.left+margin/2, y+4, "none ended")
		return
	}
	shapes := group.add("g", "fill", r.color, "stroke", r.color)
	shapes.add("path", "class", "range", "stroke-width", 2, "d", fmt.Sprintf("M%s,%dH%s", c.axis.x(r.times.P50), y, c.axis.x(r.times.Max)))
	for _, m := range marks {
		m.draw(shapes, c.axis.x(m.of(*r.times)), y)
	}
}

// String returns, for example, "policy, kube-router v2.1.0, 2026-11-28: 385 ms (p50), 1700 ms (p95), 2763 ms (p99), 3231 ms (max), 132 changes".
func (r row) String() string {
	if r.times == nil {
		return fmt.Sprintf("%s, %s: none ended, %s", r.change, r.label, r.count)
	}
	t := r.times
	return fmt.Sprintf("%s, %s: %g ms (p50), %g ms (p95), %g ms (p99), %g ms (max), %s", r.change, r.label, t.P50, t.P95, t.P99, t.Max, r.count)
}
