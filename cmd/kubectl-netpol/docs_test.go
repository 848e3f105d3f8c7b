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

var update = flag.Bool("update", false, "write the outputs into the documentation")

// console begins a block with commands and their outputs.
const console = "```console\n"

// The documented outputs are those of the program; they serve as golden files. go test
// ./cmd/kubectl-netpol -update rewrites them.
func TestDocumentedOutputsAreTrue(t *testing.T) {
	for _, d := range []struct {
		doc, folder string // working directory of the commands
		blocks      int    // minimum
	}{
		{"../../README.md", "../..", 1},
		{"../../docs/kubectl-netpol.md", "testdata", 5},
		{"testdata/outputs.txt", "testdata", 9},
		{"../../examples/README.md", "../../examples", 10},
		{"../../examples/sandbox/README.md", "../../examples/sandbox", 1},
	} {
		t.Run(strings.TrimPrefix(d.doc, "../../"), func(t *testing.T) { checkOutputs(t, d.doc, d.folder, d.blocks) })
	}
}

func checkOutputs(t *testing.T, path, folder string, blocks int) {
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(folder)
	t.Setenv("COLUMNS", "")
	parts := strings.Split(string(doc), console)
	if len(parts) <= blocks {
		t.Fatalf("found %d blocks in %s, want at least %d", len(parts)-1, path, blocks)
	}
	want := parts[0]
	for _, part := range parts[1:] {
		block, rest, _ := strings.Cut(part, "```")
		want += console
		if !strings.HasPrefix(block, "$ kubectl-netpol") { // another program
			want += part
			continue
		}
		for line := range strings.Lines(block) {
			if command, ok := strings.CutPrefix(line, "$ "); ok {
				want += line + shell(t, strings.TrimSpace(command))
			}
		}
		want += "```" + rest
	}
	switch {
	case string(doc) == want:
	case *update:
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("the outputs in %s are out of date; go test ./cmd/kubectl-netpol -update writes\n%s", path, want)
	}
}

// shell runs a documented command: the program with words as arguments, optionally followed
// by "< FILE" and by "; echo $?".
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
