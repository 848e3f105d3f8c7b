// Package printable makes text that others have chosen fit for lines and terminals. It is
// applied where such text is recorded, so that whatever prints it later need not know.
package printable

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text returns text with a question mark for everything that does not print as itself: controls
// and escape sequences, ends of lines, changes of direction, what has no width or no ink, and
// what is no UTF-8.
func Text(text string) string {
	return strings.Map(func(r rune) rune {
		if prints(r) {
			return r
		}
		return '?'
	}, text)
}

// blank are characters that unicode.IsPrint has among letters and symbols, and that have no ink.
var blank = []*unicode.RangeTable{unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector}

const brailleBlank = '\u2800'

func prints(r rune) bool {
	return r != utf8.RuneError && r != brailleBlank && unicode.IsPrint(r) && !unicode.In(r, blank...)
}

// DomainName returns a domain name, whose labels may be any bytes, as a master file has it:
// everything but letters, digits, hyphens and underscores is escaped as \DDD (RFC 1035, section
// 5.1), also the backslash itself.
func DomainName(name string) string {
	if strings.IndexFunc(name, isEscaped) < 0 {
		return name
	}
	var out strings.Builder
	for i := range len(name) {
		if isEscaped(rune(name[i])) {
			fmt.Fprintf(&out, `\%03d`, name[i])
		} else {
			out.WriteByte(name[i])
		}
	}
	return out.String()
}

func isEscaped(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.'
}
