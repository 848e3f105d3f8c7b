package docs

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// Prose wraps at about 100 characters, so that a change of a word is a change of few lines.
const widest = 105

// unbreakable are commands and links, which stay on one line.
var unbreakable = regexp.MustCompile("`[^`]*`" + `|\[[^\]]*\]\([^)]*\)`)

func TestProseWraps(t *testing.T) {
	for name, text := range texts(t) {
		for _, line := range strings.Split(withoutFences(text), "\n") {
			if strings.HasPrefix(line, "|") || utf8.RuneCountInString(line) <= widest {
				continue
			}
			whole := unbreakable.ReplaceAllStringFunc(line, func(s string) string { return strings.ReplaceAll(s, " ", "_") })
			longest := 0
			for _, word := range strings.Fields(whole) {
				longest = max(longest, utf8.RuneCountInString(word))
			}
			if longest < widest/2 {
				t.Errorf("%s: a line of %d characters, wrap it at 100: %s", name, utf8.RuneCountInString(line), line)
			}
		}
	}
}

// withoutFences returns a page without its blocks of code, also those in lists.
func withoutFences(text string) string {
	var prose []string
	code := false
	for _, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			code = !code
		} else if !code {
			prose = append(prose, line)
		}
	}
	return strings.Join(prose, "\n")
}
