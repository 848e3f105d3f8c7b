// Command kube-network-policies enforces Kubernetes network policies on its node.
// As "kube-network-policies status-writer" it writes conditions on policies that are
// not enforced as written, as "kube-network-policies probe" it asks an agent for its
// health, and as "kube-network-policies flows" for its records of flows.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/pflag"
	"k8s.io/component-base/logs"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/cmd/internal/buildversion"
	"sigs.k8s.io/kube-network-policies/pkg/agent"
	"sigs.k8s.io/kube-network-policies/pkg/bridgefilter"
	"sigs.k8s.io/kube-network-policies/pkg/conntrack"
	"sigs.k8s.io/kube-network-policies/pkg/snapshotcache"
	"sigs.k8s.io/kube-network-policies/pkg/steer"
)

// command is the agent, or one of commands.
type command interface {
	addFlags(*pflag.FlagSet)
	// validate checks the flags, and args, the arguments that are not flags.
	validate(args []string) error
	run(context.Context) error
}

const usage = `Usage: %s [flags]

Commands:
  kube-network-policies                 Enforce network policies on this node.
                                        Example: kube-network-policies --manifests ./cluster
  kube-network-policies status-writer   Write conditions on policies, with the parts that are not enforced as written.
                                        Example: kube-network-policies status-writer --kubeconfig ~/.kube/config
  kube-network-policies probe           Exit with status 0 if the agent at a probe socket is alive (livez) or ready (readyz).
                                        Example: kube-network-policies probe --probe-socket=/run/kube-network-policies/probe readyz
  kube-network-policies flows           Print what the agent at a probe socket decided lately, as JSON; kubectl netpol flows reads all agents.
                                        Example: kube-network-policies flows --probe-socket=/run/kube-network-policies/probe --denied
  kube-network-policies version         Print version, commit, build date, Go version and platform.
                                        Example: kube-network-policies version

A wrong flag or value is an error before anything starts: the exit status is 2, and 1 after any later error.

Flags:
%s`

// commands are those other than the agent, by name.
var commands = map[string]func() command{
	writerName: func() command { return newWriterOptions() },
	probeName:  func() command { return new(probeOptions) },
	flowsName:  func() command { return newFlowsOptions() },
}

func main() {
	name, args := "kube-network-policies", os.Args[1:]
	var c command = newOptions()
	if len(args) > 0 {
		if newCommand := commands[args[0]]; newCommand != nil {
			c, name, args = newCommand(), name+" "+args[0], args[1:]
		}
	}
	fs := pflag.NewFlagSet(name, pflag.ContinueOnError)
	fs.Usage = func() { fmt.Fprintf(os.Stderr, usage, name, fs.FlagUsages()) }
	c.addFlags(fs)
	showVersion := fs.Bool("version", len(args) == 1 && args[0] == "version", "print version, commit, build date, Go version and platform, and exit")
	err := explainRemoved(fs.Parse(args))
	if errors.Is(err, pflag.ErrHelp) {
		return
	}
	if err == nil && *showVersion {
		fmt.Println(buildversion.Text(name))
		return
	}
	if err == nil {
		err = c.validate(fs.Args())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err = c.run(ctx)
	stop()
	status := exitStatus(1)
	if err != nil && !errors.As(err, &status) {
		klog.ErrorS(err, "Stopped by an error", "command", name)
	}
	logs.FlushLogs()
	if err != nil {
		os.Exit(int(status))
	}
}

func (o *options) run(ctx context.Context) error {
	if err := o.applyLogging(); err != nil {
		return err
	}
	if o.cleanup || o.cleanupWait {
		return o.removeAll(ctx)
	}
	worker := os.Getenv(workerVar)
	if worker == "" && o.maxCrashes > 0 {
		return superviseWorkers(ctx, o.maxCrashes)
	}
	cfg, err := o.config(ctx)
	if err == nil {
		err = setWorker(&cfg, worker)
	}
	if err != nil {
		return err
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	return agent.Run(ctx, cfg)
}

// removeAll removes what the agent has left in the kernel and on the disk. With
// --cleanup-wait it returns when ctx ends.
func (o *options) removeAll(ctx context.Context) error {
	mark, _ := parseMark(o.mark)
	blockMark, _ := parseMark(o.blockMark)
	marks := mark | blockMark
	err := steer.Cleanup(ctx) // first: its rules set marks
	err = errors.Join(err, bridgefilter.Cleanup(), conntrack.Unmark(ctx, marks))
	if o.snapshotCache != "" {
		err = errors.Join(err, snapshotcache.Remove(o.snapshotCache))
	}
	if err == nil {
		klog.FromContext(ctx).Info("Tables, marks and saved state removed", "marks", fmt.Sprintf("%#x", marks), "snapshotCache", o.snapshotCache)
		if o.cleanupWait {
			<-ctx.Done()
		}
	}
	return err
}

// gcPercent lets the heap grow by two thirds between collections rather than double.
// Most of it is the state of the cluster, which is not garbage; the rest are decoded
// objects. docs/scalability.md has the figures.
const gcPercent = 66
