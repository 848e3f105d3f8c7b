package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/cmd/internal/command"
	"sigs.k8s.io/kube-network-policies/pkg/agent/names"
	"sigs.k8s.io/kube-network-policies/pkg/base/sealedfile"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/conntrack"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/queue"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer"
)

const cleanupName = "cleanup"

// cleanupOptions are the flags of the command cleanup.
type cleanupOptions struct {
	command.Logging
	marks         steer.Marks
	snapshotCache string
	wait          bool
}

func newCleanupOptions() *cleanupOptions {
	return &cleanupOptions{Logging: command.NewLogging(), marks: steer.DefaultMarks}
}

func (o *cleanupOptions) AddFlags(fs *pflag.FlagSet) {
	o.Logging.AddFlags(fs)
	fs.TextVar(&o.marks, "mark", o.marks, "`MASK` of the two bits to clear in connection marks, the agent's --mark")
	fs.StringVar(&o.snapshotCache, "snapshot-cache", o.snapshotCache, "`FILE` to remove, with FILE.names, the agent's --snapshot-cache; empty removes none")
	fs.BoolVar(&o.wait, "wait", o.wait, "wait to be terminated instead of exiting, for a DaemonSet that cleans all nodes")
}

func (o *cleanupOptions) Validate(args []string) error {
	return errors.Join(command.NoArguments(args), o.Logging.Validate())
}

func (o *cleanupOptions) Run(ctx context.Context) error {
	if err := o.Apply(); err != nil {
		return err
	}
	if err := o.cleanup(ctx); err != nil {
		return err
	}
	if o.wait {
		<-ctx.Done()
	}
	return nil
}

// cleanup removes what agents have left that are gone.
func (o *cleanupOptions) cleanup(ctx context.Context) error {
	queues, err := queue.Host{}.Stats()
	if err != nil {
		return err
	}
	logger := klog.FromContext(ctx)
	kept, ours, err := steer.Cleanup(ctx, func(number uint16) bool {
		return slices.ContainsFunc(queues, func(s queue.Stat) bool { return s.Number == number })
	})
	if errors.Is(err, unix.EPERM) {
		return errors.New("CAP_NET_ADMIN is missing: nothing was removed")
	}
	if len(kept) > 0 {
		logger.Info("Tables of agents that run on this node stay", "tables", kept)
	}
	if ours {
		return err
	}
	err = errors.Join(err, conntrack.Unmark(ctx, o.marks.Mask())) // last: rules set marks
	if o.snapshotCache != "" {
		err = errors.Join(err, sealedfile.Remove(o.snapshotCache), sealedfile.Remove(names.File(o.snapshotCache)))
	}
	if err == nil {
		logger.Info("Tables, marks and saved state removed", "marks", fmt.Sprintf("%#x", o.marks.Mask()), "snapshotCache", o.snapshotCache)
	}
	return err
}
