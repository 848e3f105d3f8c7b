package conntrack

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Unmark clears the bits of mask in the marks of all connections, so that no trace of the agent
// is left in accepted or blocked connections. It preserves all other bits. Call it when nothing
// sets these bits any more.
func Unmark(ctx context.Context, mask uint32) error {
	var sockets sockets
	defer sockets.close()
	t, err := sockets.open(ctx)
	if err != nil {
		return err
	}
	defer t.close()
	return unmark(t, mask)
}

// unmark lists all connections before it changes any, because the kernel may move entries.
func unmark(t table, mask uint32) error {
	var faults faults
	var marked []request
	for e, err := range t.entries(filter{}) {
		if err != nil {
			faults.add(err)
		} else if e.mark&mask != 0 {
			marked = append(marked, request{key: e.key.clone(), mask: mask})
		}
	}
	for _, err := range t.change(marked) {
		if err != nil && !errors.Is(err, unix.ENOENT) {
			faults.add(err)
		}
	}
	if err := faults.err(); err != nil {
		return fmt.Errorf("clear the bits %#x of connection marks: %w", mask, err)
	}
	return nil
}
