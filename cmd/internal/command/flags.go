package command

import (
	"fmt"
	"strconv"
	"strings"
)

// flagError is an error of a configuration: another start with it would fail, too.
type flagError struct{ error }

// FlagError returns an error that begins with the flag and its value. If a command returns it, the exit status is
// that for wrong arguments.
func FlagError(flag string, value any, format string, args ...any) error {
	return flagError{fmt.Errorf("--%s=%v: %s", flag, value, fmt.Sprintf(format, args...))}
}

// NoArguments refuses arguments that are not flags.
func NoArguments(args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q", args[0])
	}
	return nil
}

// A Value is the value of a flag that a function parses when it is read.
type Value struct {
	text string // the default, or the last parsed value
	set  func(string) error
}

// NewValue returns the Value with a default that set parses.
func NewValue(text string, set func(string) error) *Value { return &Value{text, set} }

// Set implements pflag.Value.
func (p *Value) Set(s string) error {
	p.text = s
	return p.set(s)
}

// String implements pflag.Value.
func (p *Value) String() string { return p.text }

// Type implements pflag.Value.
func (p *Value) Type() string { return "value" }

// Items parses a list with commas between items. A flag that is repeated adds to it.
func Items(add func(item string) error) *Value {
	return &Value{set: func(s string) error {
		for item := range strings.SplitSeq(s, ",") {
			if s == "" {
				return nil
			}
			if err := add(item); err != nil {
				return fmt.Errorf("%q %w", item, err)
			}
		}
		return nil
	}}
}

// Number parses an integer from 0 to limit into target, whose value is the default.
func Number(target *uint16, limit uint16) *Value {
	return &Value{strconv.Itoa(int(*target)), func(s string) error {
		n, err := strconv.ParseUint(s, 10, 16)
		if err != nil || n > uint64(limit) {
			return fmt.Errorf("must be in 0-%d", limit)
		}
		*target = uint16(n)
		return nil
	}}
}

// Checked accepts a text that passes check into target, whose value is the default.
func Checked(target *string, check func(string) error) *Value {
	return &Value{*target, func(s string) error {
		*target = s
		return check(s)
	}}
}
