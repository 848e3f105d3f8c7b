// Package words writes numbers and lists in sentences.
package words

import (
	"fmt"
	"strings"
)

// Count returns a number with its noun, "1 pod" or "2 pods".
func Count[N int | uint64](n N, one, plural string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, plural)
}

// Few joins the first few of some names, and says how many more there are.
func Few(names []string, most int, separator string) string {
	more := len(names) - most
	if more <= 0 {
		return strings.Join(names, separator)
	}
	last := fmt.Sprintf("%d more", more)
	if separator == ", " {
		last = "and " + last
	}
	return strings.Join(append(names[:most:most], last), separator)
}
