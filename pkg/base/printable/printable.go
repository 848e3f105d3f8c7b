// Package printable makes text from untrusted sources safe for lines and terminals. It is
// applied where such text is recorded, so that printing code need not care.
package printable

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text replaces everything in text that does not print as itself by question marks: control
// characters and escape sequences, line ends, changes of direction, characters without
// width or ink, and invalid UTF-8.
func Text(text string) string {
	return strings.Map(func(r rune) rune {
		if prints(r) {
			return r
		}
		return '?'
	}, text)
}

// blank are characters that unicode.IsPrint accepts as letters or symbols although they
// leave no ink.
var blank = []*unicode.RangeTable{unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector}

const brailleBlank = '\u2800'

func prints(r rune) bool {
	return r != utf8.RuneError && r != brailleBlank && unicode.IsPrint(r) && !unicode.In(r, blank...)
}

// DomainName returns a domain name, whose labels may contain any bytes, in the format of
// master files: everything except letters, digits, hyphens and underscores is escaped as
// \DDD (RFC 1035, section 5.1), including the backslash.
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
