package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// toolTimeout bounds each command of the tool.
const toolTimeout = time.Minute

// toolCommand is a command of kubectl netpol that the demo shows.
type toolCommand struct {
	about string
	args  string
	code  int // the exit code that it must have
	lines int // of its output that are shown without -v
}

// toolCommands run in the folder of the examples.
var toolCommands = []toolCommand{
	{"The manifests of an online shop, with policies and without a cluster: nothing is wrong with them.",
		"check -f online-shop", 0, 4},
	{"They do what the teams mean.",
		"assert online-shop/expectations.yaml -f online-shop", 0, 1},
	{"Who reaches whom in a namespace, on which ports?",
		"matrix -f online-shop -n orders", 0, 9},
	{"Why can the mailer not call the payment service?",
		"explain orders/mailer payments/payment --port https -f online-shop", 1, 2},
	{"A dash too many in a policy, which the API accepts.",
		"check -f online-shop -f online-shop-mistakes/or-not-and.yaml", 1, 4},
	{"What would a policy for debugging change?",
		"diff -f online-shop -f online-shop-mistakes/allow-all-shadows.yaml", 1, 2},
	{"And which expectations would it break?",
		"assert online-shop/expectations.yaml -f online-shop -f online-shop-mistakes/allow-all-shadows.yaml", 1, 6},
}

// showTool runs the commands with the program binary and prints them with their
// output, or the beginning of it. What is said on the standard error about the input is the same for all, and
// is printed once.
func showTool(ctx context.Context, out io.Writer, binary, examples string, verbose bool) error {
	binary, err := filepath.Abs(binary)
	if err != nil {
		return err
	}
	fmt.Fprint(out, "kubectl netpol answers without an agent or a cluster, in the folder examples:\n")
	for i, c := range toolCommands {
		fmt.Fprintf(out, "%d. %s\n   $ kubectl netpol %s\n", i+1, c.about, c.args)
		stdout, stderr, err := c.run(ctx, binary, examples)
		if i == 0 || err != nil {
			stdout = stderr + stdout
		}
		if !verbose && err == nil {
			stdout = shorten(stdout, c.lines)
		}
		fmt.Fprintln(out, indent(stdout))
		if err != nil {
			return fmt.Errorf("kubectl netpol %s: %w", c.args, err)
		}
	}
	return nil
}

// run returns what the command prints. Another exit code than the expected one is an
// error.
func (c toolCommand) run(ctx context.Context, binary, examples string) (stdout, stderr string, err error) {
	ctx, cancel := context.WithTimeout(ctx, toolTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, strings.Fields(c.args)...)
	cmd.Dir = examples
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	code := 0
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		code, err = exit.ExitCode(), nil
	}
	if err == nil && code != c.code {
		err = fmt.Errorf("the exit code is %d, want %d: %w", code, c.code, errDiffers)
	}
	return out.String(), errs.String(), err
}
