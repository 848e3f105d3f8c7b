// Command status-writer writes conditions on policies that are not enforced as written. It runs
// once in the cluster, and "status-writer cleanup" removes what it leaves behind.
package main

import (
	"os"

	"sigs.k8s.io/kube-network-policies/cmd/internal/command"
	"sigs.k8s.io/kube-network-policies/cmd/internal/removedflags"
)

const (
	programName = "status-writer"
	cleanupName = "cleanup"
	// agentName is the name of the agents' service account.
	agentName = "netpol-agent"
)

const usage = `Usage: %s [flags]

Commands:
  status-writer            Write conditions on policies, with the parts that are not enforced as written.
                           Example: status-writer --kubeconfig ~/.kube/config
  status-writer cleanup    Remove all conditions and annotations. Stop the writer first: it would store them again.
                           Example: status-writer cleanup --kubeconfig ~/.kube/config
  status-writer version    Print version, commit, build date, Go version and platform.
                           Example: status-writer version

A wrong flag or value is an error before anything starts: the exit status is 2, and 1 after any later error.

Flags:
%s`

var program = command.Program{
	Name:  programName,
	Usage: usage,
	Commands: map[string]func() command.Command{
		"":          func() command.Command { return newWriterOptions() },
		cleanupName: func() command.Command { return &writerCleanup{writerOptions: newWriterOptions()} },
	},
	Removed: map[string]removedflags.Table{"": removedFlags},
}

func main() { os.Exit(program.Run(os.Args[1:])) }
