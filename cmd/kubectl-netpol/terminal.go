package main

import (
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/term"
)

// style is the layout of text.
type style struct {
	width   int // of a line in characters
	colored bool
}

// defaultWidth is the width of a table that is not for a terminal.
const defaultWidth = 120

// terminalWidth returns the maximum width of lines: COLUMNS, or the width of the terminal
// to which w writes, perhaps through a pager.
func terminalWidth(w io.Writer) int {
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		return n
	}
	f, ok := w.(*os.File)
	if !ok {
		return defaultWidth
	}
	if info, err := f.Stat(); err == nil && info.Mode()&os.ModeNamedPipe != 0 {
		f = os.Stderr
	}
	if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
		return width
	}
	return defaultWidth
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// useColor reports whether output to w is coloured.
func useColor(when string, w io.Writer) (bool, error) {
	switch when {
	case "always":
		return true, nil
	case "never":
		return false, nil
	case "auto":
		return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && isTerminal(w), nil
	}
	return false, fmt.Errorf("--color=%s: must be auto, always or never", when)
}

// The codes of the terminal's own colours (ECMA-48, SGR).
const (
	bold   = "1"
	dim    = "2"
	green  = "32"
	yellow = "33"
)

// paint colours text, which must already be padded. Without a code it returns text.
func (s style) paint(code, text string) string {
	if !s.colored || text == "" || code == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}
