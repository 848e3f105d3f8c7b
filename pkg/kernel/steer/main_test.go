package steer

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// inNamespace is set in the environment of the copy of this program that runs in new namespaces.
const inNamespace = "STEER_TEST_IN_NAMESPACE"

// TestMain runs all tests in a new network namespace, which ends with them, if that is permitted.
// Mounts are private, too, for the names of further namespaces.
func TestMain(m *testing.M) {
	if os.Getenv(inNamespace) != "" || os.Geteuid() != 0 {
		if err := prepareNamespace(); err != nil {
			fmt.Fprintln(os.Stderr, "prepare the namespaces:", err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), inNamespace+"=1")
	cmd.SysProcAttr = &unix.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS,
		Pdeathsig:  unix.SIGKILL,
	}
	err := cmd.Run()
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) {
		os.Exit(m.Run()) // not permitted, or not by an emulator: needKernel skips
	}
	if exit := (&exec.ExitError{}); errors.As(err, &exit) {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "run the tests in a network namespace:", err)
		os.Exit(1)
	}
}

func prepareNamespace() error {
	if os.Getenv(inNamespace) == "" {
		return nil
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := os.MkdirAll("/run/netns", 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", "/run/netns", "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount /run/netns: %w", err)
	}
	return exec.Command("ip", "link", "set", "lo", "up").Run()
}

// needKernel skips a test that needs a network namespace if there is none. NETNS_REQUIRED forbids the
// skip.
func needKernel(t *testing.T) {
	t.Helper()
	switch {
	case os.Getenv(inNamespace) != "":
	case os.Getenv("NETNS_REQUIRED") == "":
		t.Skip("needs to be root and allowed to make network namespaces")
	default:
		t.Fatal("network namespaces are required, and making them is not allowed")
	}
}
