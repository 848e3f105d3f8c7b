package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// parse parses the arguments of a command. Its errors name the flag and its value.
func parse(fs *pflag.FlagSet, command string, args []string) error {
	if err := removedFlags[command].Check(args); err != nil {
		return err
	}
	err := fs.Parse(args)
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		return flagError(invalid.GetFlag().Name, invalid.GetValue(), "%v", invalid.Unwrap())
	}
	return err
}

// flagError returns an error that begins with the flag and its value.
func flagError(flag string, value any, format string, args ...any) error {
	return fmt.Errorf("--%s=%v: %s", flag, value, fmt.Sprintf(format, args...))
}

// noArguments refuses arguments that are not flags.
func noArguments(args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q", args[0])
	}
	return nil
}

// parsed is the value of a flag that a function parses when it is read.
type parsed struct {
	text string // the default, or the last parsed value
	set  func(string) error
}

// Set implements pflag.Value.
func (p *parsed) Set(s string) error {
	p.text = s
	return p.set(s)
}

// String implements pflag.Value.
func (p *parsed) String() string { return p.text }

// Type implements pflag.Value.
func (p *parsed) Type() string { return "value" }

// items parses a list with commas between items. A flag that is repeated adds to it.
func items(add func(item string) error) *parsed {
	return &parsed{set: func(s string) error {
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

// number parses an integer from 0 to limit into target, whose value is the default.
func number(target *uint16, limit uint16) *parsed {
	return &parsed{strconv.Itoa(int(*target)), func(s string) error {
		n, err := strconv.ParseUint(s, 10, 16)
		if err != nil || n > uint64(limit) {
			return fmt.Errorf("must be in 0-%d", limit)
		}
		*target = uint16(n)
		return nil
	}}
}

// checked accepts a text that passes check into target, whose value is the default.
func checked(target *string, check func(string) error) *parsed {
	return &parsed{*target, func(s string) error {
		*target = s
		return check(s)
	}}
}

// optional accepts a text that is empty or passes check.
func optional(target *string, check func(string) []string) *parsed {
	return checked(target, func(s string) error {
		if faults := check(s); s != "" && len(faults) > 0 {
			return errors.New(faults[0])
		}
		return nil
	})
}

// oneOf accepts one of names.
func oneOf(target *string, names ...string) *parsed {
	return checked(target, func(s string) error {
		if !slices.Contains(names, s) {
			return fmt.Errorf("must be one of %s", strings.Join(names, ", "))
		}
		return nil
	})
}
