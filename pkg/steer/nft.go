package steer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"
)

// killGrace bounds the wait for the output of an nft process that has ended: a child
// that has left the process group may keep the pipe open, and on a busy machine this
// process may not have read it yet.
const killGrace = 100 * time.Millisecond

// program runs the nft program as knftables does. Unlike knftables it kills an nft
// process that hangs, with its process group, when the context ends.
type program struct {
	knftables.Interface
	path string
}

func newProgram() (*program, error) {
	nft, err := knftables.New(knftables.InetFamily, TableName)
	if err != nil {
		return nil, err
	}
	path, err := exec.LookPath("nft")
	return &program{nft, path}, err
}

// Run commits tx.
func (p *program) Run(ctx context.Context, tx *knftables.Transaction) error {
	script := tx.String()
	if _, fault, ok := strings.Cut(script, "# ERROR: "); ok {
		return errors.New(fault) // the only access to the error of a transaction
	}
	cmd := exec.CommandContext(ctx, p.path, "-f", "-")
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = killGrace
	cmd.Stdin = strings.NewReader(script)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err := cmd.Run()
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
		return nil // nft has succeeded, even if its output is incomplete
	case ctx.Err() != nil:
		return fmt.Errorf("nft did not end and was killed: %w", ctx.Err())
	}
	line, _, _ := strings.Cut(stderr.String(), "\n")
	return fmt.Errorf("nft: %w: %s", err, line)
}
