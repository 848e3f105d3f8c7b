package flows

import (
	"strings"
	"unicode"
)

// Printable returns text, such as a name in a record, without what would end a line or change
// a terminal.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}
