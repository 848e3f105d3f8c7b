package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the outputs into docs/kubectl-netpol.md")

// console begins a block of commands and their outputs.
const console = "```console\n"

// The outputs in the documentation are those of the program. They are the golden
// ones, too: go test ./cmd/kubectl-netpol -update writes them anew.
func TestDocumentedOutputsAreTrue(t *testing.T) {
	path, err := filepath.Abs("../../docs/kubectl-netpol.md")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir("testdata")
	parts := strings.Split(string(doc), console)
	if len(parts) < 6 {
		t.Fatalf("found %d blocks in %s", len(parts)-1, path)
	}
	want := parts[0]
	for _, part := range parts[1:] {
		block, rest, _ := strings.Cut(part, "```")
		want += console
		for line := range strings.Lines(block) {
			if command, ok := strings.CutPrefix(line, "$ "); ok {
				want += line + shell(t, strings.TrimSpace(command))
			}
		}
		want += "```" + rest
	}
	if string(doc) == want {
		return
	}
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("%s is not true any more; it should be\n%s", path, want)
}

// shell runs a command of the documentation: the program with words for
// arguments, perhaps "< FILE" behind them, and perhaps "; echo $?".
func shell(t *testing.T, command string) string {
	t.Helper()
	command, echo := strings.CutSuffix(command, "; echo $?")
	command, file, redirected := strings.Cut(command, " < ")
	args := strings.Fields(command)
	if args[0] != "kubectl-netpol" {
		t.Fatalf("cannot run %q", command)
	}
	var stdin io.Reader = strings.NewReader("")
	if redirected {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		stdin = bytes.NewReader(data)
	}
	var out bytes.Buffer
	code := run(context.Background(), args[1:], stdin, &out, &out)
	if echo {
		fmt.Fprintln(&out, code)
	}
	return out.String()
}
