package nft

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// inNamespace is set in the environment of the copy of this program that runs in a new network
// namespace.
const inNamespace = "NFT_TEST_IN_NAMESPACE"

// TestMain runs all tests in a new network namespace, which ends with them, if that is permitted.
func TestMain(m *testing.M) {
	if os.Getenv(inNamespace) != "" || os.Geteuid() != 0 {
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), inNamespace+"=1")
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL}
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
