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

// writer commits transactions to the table.
type writer interface {
	NewTransaction() *knftables.Transaction
	Run(context.Context, *knftables.Transaction) error
}

// program is the nft program. Unlike knftables it runs only when something is written:
// knftables.New runs it twice, which first packets would wait for when an agent starts.
// And it kills an nft process that hangs, with its process group, when the context ends.
type program struct{ path string }

func newProgram() (*program, error) {
	path, err := exec.LookPath("nft")
	if err != nil {
		return nil, fmt.Errorf("find the nft program: %w", err)
	}
	return &program{path}, nil
}

// NewTransaction returns one of a knftables.Fake: only New makes others, and they are the
// same.
func (*program) NewTransaction() *knftables.Transaction {
	return knftables.NewFake(knftables.InetFamily, TableName).NewTransaction()
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
