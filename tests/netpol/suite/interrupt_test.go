package suite

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// interrupted is a backend whose first change never becomes effective.
type interrupted struct {
	open
	close func() error
}

func (interrupted) Apply(ctx context.Context, _ *netpol.State) error {
	fmt.Println("applying")
	<-ctx.Done()
	return ctx.Err()
}

func (b interrupted) Close() error { return b.close() }

// closing are backends by how they close.
var closing = map[string]func() error{
	"closes": func() error {
		fmt.Println("closed")
		return nil
	},
	"cannot close": func() error { return errors.New("namespace x stays") },
	"never closes": func() error {
		fmt.Println("closing")
		_, err := io.Copy(io.Discard, os.Stdin) // until the test ends
		return err
	},
}

const interruptedBackend = "SUITE_TEST_INTERRUPTED"

// TestInterruptedProcess is the process that the other tests interrupt.
func TestInterruptedProcess(t *testing.T) {
	c, ok := closing[os.Getenv(interruptedBackend)]
	if !ok {
		t.Skip("is run by TestInterrupt")
	}
	os.Args = []string{"netpol"}
	Command{Default: "interrupted", Backends: map[string]NewBackend{
		"interrupted": func(context.Context) (netpol.Backend, error) { return interrupted{close: c}, nil },
	}}.Main()
	t.Fatal("Main returned although the run was interrupted")
}

func TestInterrupt(t *testing.T) {
	for _, tt := range []struct {
		backend string
		first   syscall.Signal
		after   []string // lines after the first signal, in any order
		again   bool     // there is a second signal then
		status  int      // -1 if the second signal ends the process
	}{
		{"closes", syscall.SIGINT, []string{"interrupted: deleting", "closed", "netpol: no scenario is played"}, false, 1},
		{"closes", syscall.SIGTERM, []string{"interrupted: deleting", "closed", "netpol: no scenario is played"}, false, 1},
		{"cannot close", syscall.SIGINT, []string{"interrupted: deleting", "namespace x stays"}, false, 1},
		{"never closes", syscall.SIGINT, []string{"interrupted: deleting", "closing"}, true, -1},
	} {
		t.Run(fmt.Sprintf("%s %s", tt.backend, tt.first), func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestInterruptedProcess$")
			cmd.Env = append(os.Environ(), interruptedBackend+"="+tt.backend)
			output, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer output.Close()
			cmd.Stdout, cmd.Stderr = w, w
			stdin, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			defer stdin.Close()
			err = cmd.Start()
			w.Close()
			if err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(output)
			await(t, lines, "applying")
			_ = cmd.Process.Signal(tt.first)
			await(t, lines, tt.after...)
			if tt.again {
				_ = cmd.Process.Signal(syscall.SIGINT)
			}
			_ = cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != tt.status {
				t.Errorf("the exit status is %d (%s), want %d", got, cmd.ProcessState, tt.status)
			}
		})
	}
}

// await reads until there was a line with each of these texts.
func await(t *testing.T, lines *bufio.Scanner, texts ...string) {
	t.Helper()
	missing := map[string]bool{}
	for _, text := range texts {
		missing[text] = true
	}
	for len(missing) > 0 && lines.Scan() {
		for text := range missing {
			if strings.Contains(lines.Text(), text) {
				delete(missing, text)
			}
		}
	}
	if len(missing) > 0 {
		t.Fatalf("the process ended without %v", missing)
	}
}
