package rule

import (
	"fmt"
	"strings"
)

// token is a word, an operator or a bracket.
type token struct {
	text   string
	column int // counted from 1
}

// errorf returns an error about t. A token without text is the end of the rule.
func (t token) errorf(format string, args ...any) error {
	if t.text == "" {
		return fmt.Errorf("column %d, end of rule: %w", t.column, fmt.Errorf(format, args...))
	}
	return fmt.Errorf("column %d, %q: %w", t.column, t.text, fmt.Errorf(format, args...))
}

// operators are the tokens that need no space around them, longest first.
var operators = []string{"==", "!=", "{", "}", ",", "&", "|"}

// isWord reports whether words may contain r. Addresses, ranges and names of sets are words.
func isWord(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("@._:/-", r)
}

// scan splits a rule into tokens. The last token is empty and marks the end.
func scan(text string) ([]token, error) {
	var tokens []token
	rest := text
	for {
		rest = strings.TrimLeft(rest, " ")
		t := token{column: len(text) - len(rest) + 1}
		if rest == "" {
			return append(tokens, t), nil
		}
		t.text = firstToken(rest)
		if t.text == "" {
			t.text = string([]rune(rest)[:1])
			return nil, t.errorf("is not a character of a rule")
		}
		tokens, rest = append(tokens, t), rest[len(t.text):]
	}
}

// firstToken returns the token at the beginning of text, empty if there is none.
func firstToken(text string) string {
	for _, o := range operators {
		if strings.HasPrefix(text, o) {
			return o
		}
	}
	end := strings.IndexFunc(text, func(r rune) bool { return !isWord(r) })
	if end < 0 {
		end = len(text)
	}
	return text[:end]
}
