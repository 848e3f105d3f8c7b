package nft

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"
)

// leavesChild returns a table, and a transaction of it, whose nft starts a child that keeps its
// output open, writes the child's pid to a file, and ends with a command.
func leavesChild(t *testing.T, pid, command string) (*Table, *knftables.Transaction) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nft")
	if err := os.WriteFile(path, []byte("#!/bin/sh\nsleep 1000 &\necho $! >"+pid+"\n"+command+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	table := &Table{knftables.InetFamily, "test", path}
	tx := table.NewTransaction()
	tx.Add(&knftables.Table{})
	return table, tx
}

// TestHangingNftIsKilled has an nft whose child keeps its output open.
func TestHangingNftIsKilled(t *testing.T) {
	child := filepath.Join(t.TempDir(), "child")
	if err := unix.Mkfifo(child, 0o600); err != nil {
		t.Fatal(err)
	}
	table, tx := leavesChild(t, child, "wait")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- table.Run(ctx, tx) }()
	content, err := os.ReadFile(child) // waits for the child
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	cancel()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("got %v", err)
	}
	ends := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(ends, 30_000)
	for err == unix.EINTR {
		n, err = unix.Poll(ends, 30_000)
	}
	if n != 1 {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		t.Errorf("the child of nft goes on (%v)", err)
	}
}

// A commit of nft counts even if the end of its output is not read.
func TestNftOutputIsNotWaitedForIndefinitely(t *testing.T) {
	started := filepath.Join(t.TempDir(), "started")
	table, tx := leavesChild(t, started, "")
	err := table.Run(t.Context(), tx)
	content, _ := os.ReadFile(started)
	if pid, _ := strconv.Atoi(strings.TrimSpace(string(content))); pid > 0 {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	if err != nil {
		t.Error(err)
	}
}

func TestFaultyTransactionIsNotRun(t *testing.T) {
	table := &Table{knftables.InetFamily, "test", "/bin/true"}
	tx := table.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Add(&knftables.Chain{}) // has no name
	if err := table.Run(t.Context(), tx); err == nil {
		t.Error("it was run")
	}
}

func TestNamesThatNftParsesAsTheyAre(t *testing.T) {
	for name, want := range map[string]bool{
		"eth0": true, "cni0": true, "br-1f.20": true, "veth1@if2": true, "fifteen-letters": true,
		"": false, "sixteen--letters": false, `a"b`: false, "a*": false, `a\`: false, "a b": false, "a;b": false, "ä": false,
	} {
		if got := IsPlain(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}

func TestMissingProgramIsAnError(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := New(knftables.InetFamily, "test"); err == nil || !strings.Contains(err.Error(), "nft") {
		t.Errorf("got %v", err)
	}
}
