package manifestyaml

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Comment is a line of a comment, without the leading #.
type Comment struct {
	Line int // of the file
	Text string
}

// Comments returns the comments within the document and directly above it, in order.
func (d *Document) Comments() []Comment {
	r := commentReader{lines: d.lines()}
	r.above(d.Line(), d.above)
	r.node(d.node)
	slices.SortStableFunc(r.found, func(a, b Comment) int { return a.Line - b.Line })
	return slices.Compact(r.found)
}

// commentReader finds the lines of comments. The YAML package only tells which node a comment
// belongs to.
type commentReader struct {
	lines []string
	found []Comment
}

func (r *commentReader) node(n *yaml.Node) {
	r.above(n.Line, n.HeadComment)
	r.below(n.Line, n.LineComment)
	for _, child := range n.Content {
		r.node(child)
	}
	r.below(n.Line, n.FootComment)
}

// above adds a comment that ends above a line.
func (r *commentReader) above(line int, comment string) {
	for _, text := range slices.Backward(strings.Split(comment, "\n")) {
		r.search(line-1, -1, text)
	}
}

// below adds a comment that begins at a line or below it.
func (r *commentReader) below(line int, comment string) {
	for text := range strings.SplitSeq(comment, "\n") {
		r.search(line, +1, text)
	}
}

// search adds the first line with the text of a comment, from a line on.
func (r *commentReader) search(line, step int, text string) {
	text = strings.TrimSpace(text)
	if text == "" {
		return
	}
	for ; line >= 1 && line <= len(r.lines); line += step {
		if strings.HasSuffix(strings.TrimSpace(r.lines[line-1]), text) {
			r.found = append(r.found, Comment{line, strings.TrimSpace(strings.TrimLeft(text, "#"))})
			return
		}
	}
}
