// Command kube-network-policies enforces Kubernetes network policies on its node.
// "kube-network-policies status-writer" writes conditions on policies that are not enforced
// as written, "kube-network-policies probe" asks an agent for its health, and
// "kube-network-policies flows" for its flow records. The cleanup commands remove what agent
// and status writer leave behind.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/pflag"
	"k8s.io/component-base/logs"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/cmd/internal/buildversion"
)

// command is the agent, or one of commands.
type command interface {
	addFlags(*pflag.FlagSet)
	// validate checks flags that depend on other flags or on files, and args, the arguments
	// that are not flags.
	validate(args []string) error
	run(context.Context) error
}

const agentName = "kube-network-policies"

const usage = `Usage: %s [flags]

Commands:
  kube-network-policies                 Enforce network policies on this node.
                                        Example: kube-network-policies --manifests ./cluster
  kube-network-policies cleanup         Remove what an agent leaves in the kernel and on the disk. Pods are then not isolated.
                                        Example: kube-network-policies cleanup --wait
  kube-network-policies status-writer   Write conditions on policies, with the parts that are not enforced as written.
                                        Example: kube-network-policies status-writer --kubeconfig ~/.kube/config
  kube-network-policies status-writer cleanup
                                        Remove all conditions and annotations. Stop the writer first: it would store them again.
                                        Example: kube-network-policies status-writer cleanup --kubeconfig ~/.kube/config
  kube-network-policies probe           Exit with status 0 if the agent at a probe socket is alive (livez) or ready (readyz).
                                        Example: kube-network-policies probe readyz
  kube-network-policies flows           Print what the agent at a probe socket decided lately, as JSON; kubectl netpol flows reads all agents.
                                        Example: kube-network-policies flows --denied
  kube-network-policies key             Make the key that proves an agent to other nodes, and publish it in the status of its pod, as an init container.
                                        Example: kube-network-policies key
  kube-network-policies version         Print version, commit, build date, Go version and platform.
                                        Example: kube-network-policies version

A wrong flag or value is an error before anything starts: the exit status is 2, and 1 after any later error.

Flags:
%s`

// commands are the commands other than the agent, by name.
var commands = map[string]func() command{
	cleanupName:                    func() command { return newCleanupOptions() },
	writerName:                     func() command { return newWriterOptions() },
	writerName + " " + cleanupName: func() command { return &writerCleanup{writerOptions: newWriterOptions()} },
	probeName:                      func() command { return newProbeOptions() },
	flowsName:                      func() command { return newFlowsOptions() },
	keyName:                        func() command { return newKeyOptions() },
}

// choose returns the command named by the first args, its name, and the remaining args.
func choose(args []string) (command, string, []string) {
	for n := min(2, len(args)); n > 0; n-- {
		name := strings.Join(args[:n], " ")
		if newCommand := commands[name]; newCommand != nil {
			return newCommand(), name, args[n:]
		}
	}
	return newOptions(), "", args
}

func main() {
	c, name, args := choose(os.Args[1:])
	program := strings.TrimSpace(agentName + " " + name)
	fs := pflag.NewFlagSet(program, pflag.ContinueOnError)
	fs.Usage = func() { fmt.Fprintf(os.Stderr, usage, program, fs.FlagUsages()) }
	c.addFlags(fs)
	showVersion := fs.Bool("version", len(args) == 1 && args[0] == "version", "print version, commit, build date, Go version and platform, and exit")
	err := parse(fs, name, args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return
	case err == nil && *showVersion:
		fmt.Println(buildversion.Text(program))
		return
	case err == nil:
		err = c.validate(fs.Args())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(run(c, program))
}

// run returns the exit status of a command.
func run(c command, program string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err := c.run(ctx)
	status := exitStatus(1)
	switch {
	case err == nil:
		status = 0
	case !errors.As(err, &status):
		klog.ErrorS(err, "Stopped by an error", "command", program)
	}
	logs.FlushLogs()
	return int(status)
}
