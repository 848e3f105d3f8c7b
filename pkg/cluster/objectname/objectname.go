// Package objectname makes names of objects that API servers accept.
package objectname

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Valid returns a valid object name: base, cut to leave room, and suffix. A valid and short
// enough base is not changed. The suffix is empty, or begins with "." or "-" and ends in a
// letter or a digit.
func Valid(base, suffix string) string {
	base = strings.Join(strings.FieldsFunc(strings.Map(nameRune, base), func(r rune) bool { return r == '.' }), ".")
	for strings.Contains(base, "-.") || strings.Contains(base, ".-") {
		base = strings.ReplaceAll(strings.ReplaceAll(base, "-.", "."), ".-", ".")
	}
	base = strings.TrimLeft(base, "-.")
	base = strings.TrimRight(base[:min(len(base), validation.DNS1123SubdomainMaxLength-len(suffix))], "-.")
	if base == "" {
		base = "x"
	}
	return base + suffix
}

// nameRune returns r, or its replacement in a name.
func nameRune(r rune) rune {
	switch {
	case 'a' <= r && r <= 'z', '0' <= r && r <= '9', r == '.', r == '-':
		return r
	case 'A' <= r && r <= 'Z':
		return r - 'A' + 'a'
	}
	return '-'
}
