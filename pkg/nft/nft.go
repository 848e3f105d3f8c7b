// Package nft writes tables of nftables with the nft program.
package nft

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

// Writer commits transactions: a Table, or in tests a knftables.Fake.
type Writer interface {
	NewTransaction() *knftables.Transaction
	Run(context.Context, *knftables.Transaction) error
}

// Table writes one table. Unlike that of knftables it runs nft only when something is
// written: knftables.New runs it twice, which first packets would wait for when an agent
// starts. And it kills an nft process that hangs, with its process group, when the context
// ends.
type Table struct {
	family     knftables.Family
	name, path string
}

// New returns the table name of a family, which need not exist. It is an error if there is
// no nft program. Whether the program works is seen at the first write.
func New(family knftables.Family, name string) (*Table, error) {
	path, err := exec.LookPath("nft")
	if err != nil {
		return nil, fmt.Errorf("find the nft program: %w", err)
	}
	return &Table{family, name, path}, nil
}

// NewTransaction returns one of a knftables.Fake: only knftables.New makes others, and they
// are the same.
func (t *Table) NewTransaction() *knftables.Transaction {
	return knftables.NewFake(t.family, t.name).NewTransaction()
}

// Run commits tx. If ctx ends first, whether it was committed is not known.
func (t *Table) Run(ctx context.Context, tx *knftables.Transaction) error {
	script := tx.String()
	if _, fault, ok := strings.Cut(script, "# ERROR: "); ok {
		return errors.New(fault) // the only access to the error of a transaction
	}
	cmd := exec.CommandContext(ctx, t.path, "-f", "-")
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

// IsPlain reports whether nft parses the name of an interface as it is. Names may contain
// quotes and other special characters.
func IsPlain(name string) bool {
	return name != "" && len(name) < unix.IFNAMSIZ && !strings.ContainsFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-@", r))
	})
}
