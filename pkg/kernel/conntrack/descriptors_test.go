package conntrack

import (
	"testing"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// Clients of the agent may have all file descriptors: a Deny, and a new owner of an address, do not need
// another one.
func TestKernelChangesNeedNoFileDescriptor(t *testing.T) {
	enterNamespace(t)
	k, b, r := realTable(t), newReal(t), newRealRemover(t)
	if err := b.sockets.prepare(maxOpen); err != nil {
		t.Fatal(err)
	}
	insert(t, k, direct(packet.UDP, "10.0.0.7:1", "10.0.1.1:53"))
	ctx := testContext(t)
	if err := runPass(t, b, always(Unblock, nil)); err != nil {
		t.Fatal(err)
	}
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	_ = runApply(t, b, always(Block, nil), Change{Addrs: addrs("10.0.0.7")}) // the node's addresses cannot be read again
	blocked := marks(t, k)
	errRemove := r.Remove(ctx, addrs("10.0.0.7"))
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if blocked["UDP 10.0.0.7:1 -> 10.0.1.1:53"] != testMark {
		t.Errorf("marks %#x", blocked)
	}
	if errRemove != nil || len(marks(t, k)) != 0 {
		t.Errorf("%v, left: %v", errRemove, marks(t, k))
	}
}
