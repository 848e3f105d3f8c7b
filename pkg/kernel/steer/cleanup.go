package steer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"
)

// cleanupNames are the names of tables that agents leave: this one, its versions up to 0.2.0 and the
// upstream agent, which has a second table for domain names.
var cleanupNames = []string{TableName, FormerName, FormerName + "-dnscache"}

// Cleanup removes the tables of agents that are gone, also those of earlier versions and of the upstream
// agent. This drops the packets in all queues of the network namespace. bound reports whether a process
// has bound a queue number: then its agent lives, and the table stays. Cleanup returns the names of
// these tables, and whether one is of a version of this agent, which needs the marks of connections.
func Cleanup(ctx context.Context, bound func(queue uint16) bool) (kept []string, ours bool, err error) {
	for _, name := range cleanupNames {
		queues, found := claimed(ctx, name)
		switch {
		case found != nil:
			err = errors.Join(err, fmt.Errorf("read table %s: %w", name, found))
		case slices.ContainsFunc(queues, bound):
			kept = append(kept, name)
			ours = ours || name == TableName || isFormer(ctx)
		default:
			err = errors.Join(err, removeTable(ctx, knftables.BridgeFamily, name), removeTable(ctx, knftables.InetFamily, name))
		}
	}
	return kept, ours, err
}

// isFormer reports whether an earlier version has written the table with FormerName, or may have.
func isFormer(ctx context.Context) bool {
	f, err := netlinkFormer{}.read(ctx)
	return f.ours || err != nil
}

// claimed returns all queue numbers in the rules of a table, and the one that its holder has bound.
func claimed(ctx context.Context, table string) (queues []uint16, err error) {
	_, err = netlinkKernel{}.readConsistently(ctx, func(conn *netlink.Conn) (err error) {
		name := stringArgument(tableArgument.kind, table)
		if queues, err = queueNumbers(conn, name, ""); err != nil {
			return err
		}
		holder, err := readHolder(conn, name)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		if holder.Queue != 0 {
			queues = append(queues, holder.Queue)
		}
		return err
	})
	return queues, err
}
