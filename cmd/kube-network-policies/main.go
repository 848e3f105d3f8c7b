// Command kube-network-policies enforces Kubernetes network policies on the node
// it runs on. As "kube-network-policies status-writer" it tells the authors of
// policies what the implementation makes of them.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/prometheus/common/version"
	"github.com/spf13/pflag"
	"k8s.io/component-base/logs"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/agent"
	"sigs.k8s.io/kube-network-policies/pkg/steer"
)

// program is one of the programs in this binary.
type program interface {
	addFlags(*pflag.FlagSet)
	// validate is called with the arguments that are no flags.
	validate(args []string) error
	run(context.Context) error
}

const usage = `Usage: %s [flags]

Programs of this binary:
  kube-network-policies                 enforce network policies on this node
                                        kube-network-policies --manifests ./cluster
  kube-network-policies status-writer   write conditions on policies that are not honoured as written
                                        kube-network-policies status-writer --kubeconfig ~/.kube/config
  kube-network-policies version         print the version and exit

Flags:
%s`

func main() {
	name, args := "kube-network-policies", os.Args[1:]
	var p program = newOptions()
	if len(args) > 0 && args[0] == writerName {
		name, args = name+" "+writerName, args[1:]
		p = newWriterOptions()
	}
	fs := pflag.NewFlagSet(name, pflag.ContinueOnError)
	fs.Usage = func() { fmt.Fprintf(os.Stderr, usage, name, fs.FlagUsages()) }
	p.addFlags(fs)
	showVersion := fs.Bool("version", len(args) == 1 && args[0] == "version", "Print version, commit, build date, Go version and platform, and exit.")
	err := fs.Parse(args)
	if errors.Is(err, pflag.ErrHelp) {
		return
	}
	if err == nil && *showVersion {
		fmt.Println(version.Print(name))
		return
	}
	if err == nil {
		err = p.validate(fs.Args())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err = p.run(ctx)
	stop()
	if err != nil {
		klog.ErrorS(err, "Ended", "program", name)
	}
	logs.FlushLogs()
	if err != nil {
		os.Exit(1)
	}
}

func (o *options) run(ctx context.Context) error {
	if err := applyLogging(o.logging); err != nil {
		return err
	}
	if o.cleanup {
		return steer.Cleanup(ctx)
	}
	cfg, err := o.config()
	if err != nil {
		return err
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	return agent.Run(ctx, cfg)
}

// gcPercent lets the heap grow by two thirds rather than double until it is
// collected. Most of it is the cluster, which stays; the rest is what was
// decoded. docs/scalability.md has the figures.
const gcPercent = 66
