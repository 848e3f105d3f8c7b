package steer

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"
)

// TestHangingNftIsKilled has an nft whose child keeps its output open.
func TestHangingNftIsKilled(t *testing.T) {
	dir := t.TempDir()
	started := filepath.Join(dir, "started")
	script := "#!/bin/sh\nsleep 1000 &\necho $! >" + started + ".tmp\nmv " + started + ".tmp " + started + "\nwait\n"
	path := filepath.Join(dir, "nft")
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	nft := &program{path}
	tx := nft.NewTransaction()
	tx.Add(&knftables.Table{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- nft.Run(ctx, tx) }()
	pid := 0
	await(t, func() bool {
		content, err := os.ReadFile(started)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(content)))
		return err == nil
	})
	t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGKILL) }) // if the test fails
	cancel()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("got %v", err)
	}
	await(t, func() bool {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z ") || unix.Kill(pid, 0) == unix.ESRCH
	})
}

// A commit of nft counts even if the end of its output is not read.
func TestNftOutputIsNotWaitedForIndefinitely(t *testing.T) {
	dir := t.TempDir()
	started := filepath.Join(dir, "started")
	path := filepath.Join(dir, "nft")
	if err := os.WriteFile(path, []byte("#!/bin/sh\nsleep 1000 &\necho $! >"+started+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	nft := &program{path}
	tx := nft.NewTransaction()
	tx.Add(&knftables.Table{})
	err := nft.Run(t.Context(), tx)
	content, _ := os.ReadFile(started)
	if pid, _ := strconv.Atoi(strings.TrimSpace(string(content))); pid > 0 {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	if err != nil {
		t.Error(err)
	}
}

// await polls until f is true.
func await(t *testing.T, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("condition not met within 30s")
		}
	}
}

func TestFaultyTransactionIsNotRun(t *testing.T) {
	nft := &program{"/bin/true"}
	tx := nft.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Add(&knftables.Chain{}) // has no name
	if err := nft.Run(t.Context(), tx); err == nil {
		t.Error("it was run")
	}
}
