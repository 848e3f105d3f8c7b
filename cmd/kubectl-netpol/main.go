// Command kubectl-netpol shows what the network policies of a cluster do: which pods reach
// which, why, what a change would alter, and which parts are not enforced as written. It
// runs standalone or, if it is on PATH, as "kubectl netpol". It evaluates policies with the
// agents' own packages compile and policy, so that both give the same answers.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"sigs.k8s.io/kube-network-policies/cmd/internal/buildversion"
	"sigs.k8s.io/kube-network-policies/cmd/internal/removedflags"
)

// The exit codes. exitNo means, depending on the command, denied, changed or with findings.
const (
	exitYes   = 0
	exitNo    = 1
	exitError = 2
)

// errNo ends a command that has printed a negative answer.
var errNo = errors.New("no")

// errDepends ends a command that has printed what the answer depends on, or what is not known.
var errDepends = errors.New("it depends")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run runs the program and returns its exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	cmd := newCommand()
	cmd.SetArgs(args)
	cmd.SetIn(stdin)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	used, err := cmd, errors.Join(removedflags.Kinds.Check(args), removedFlags.Check(args))
	if err == nil {
		used, err = cmd.ExecuteContextC(ctx)
	}
	switch {
	case err == nil:
		return exitYes
	case errors.Is(err, errNo):
		return exitNo
	case errors.Is(err, errDepends):
		return exitError
	}
	printError(used, stdout, stderr, err)
	return exitError
}

// printError reports that a command has no answer. It also does so in JSON if the output
// was to be JSON.
func printError(cmd *cobra.Command, stdout, stderr io.Writer, err error) {
	fmt.Fprintf(stderr, "error: %v\n", err)
	if output := cmd.Flags().Lookup("output"); output != nil && output.Value.String() == "json" {
		// If this cannot be written either, there is nothing left to do.
		_ = printJSON(stdout, map[string]string{"error": err.Error()})
	}
}

func newCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kubectl-netpol",
		Short: "Show what the network policies of a cluster do",
		Long: `Show what the network policies of a cluster do: of the live cluster, or of
manifests (-f).

The exit code is 0 when the answer is yes, 1 when it is no, and 2 when there is
none; the help of each command says what that means.`,
		Version:       buildversion.Text("kubectl-netpol"),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	o := &options{}
	o.addFlags(cmd.PersistentFlags())
	cmd.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		o.notes = cmd.ErrOrStderr()
		return o.addChart()
	}
	cmd.SetVersionTemplate("{{.Version}}\n")
	cmd.AddCommand(newMatrix(o), newExplain(o), newDiff(o), newCheck(o), newAssert(o), newView(o), newList(o), newDoctor(o), newFlows(o), newSuggest(o), newConvert(o), newWait(o), newVersion(), newUnused())
	o.complete(cmd)
	return cmd
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print version, commit, build date, Go version and platform",
		Long:    "Print version, commit, build date, Go version and platform. The exit code is 0.",
		Example: "  kubectl netpol version",
		Args:    cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintln(cmd.OutOrStdout(), cmd.Root().Version)
		},
	}
}
