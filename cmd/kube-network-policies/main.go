// Command kube-network-policies enforces Kubernetes network policies on the node
// it runs on.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"
	"k8s.io/component-base/logs"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/agent"
	"sigs.k8s.io/kube-network-policies/pkg/steer"
)

func main() {
	o := newOptions()
	fs := pflag.NewFlagSet("kube-network-policies", pflag.ContinueOnError)
	o.addFlags(fs)
	err := fs.Parse(os.Args[1:])
	if errors.Is(err, pflag.ErrHelp) {
		return
	}
	if err == nil {
		err = o.validate(fs.Args())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if err := run(o); err != nil {
		klog.ErrorS(err, "Agent ended")
		logs.FlushLogs()
		os.Exit(1)
	}
	logs.FlushLogs()
}

func run(o *options) error {
	if err := o.applyLogging(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if o.cleanup {
		return steer.Cleanup(ctx)
	}
	cfg, err := o.config()
	if err != nil {
		return err
	}
	return agent.Run(ctx, cfg)
}
