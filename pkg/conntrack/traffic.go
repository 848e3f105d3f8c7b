package conntrack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
)

// accounting says whether the kernel counts the bytes of connections, of this network
// namespace, that begin from now on.
const accounting = "/proc/sys/net/netfilter/nf_conntrack_acct"

// Traffic calls yield with the packet that opened each tracked connection, whether it was for
// the node itself, and the bytes that the connection has carried in both directions until
// now. counted is false if the kernel does not count them; then yield is not called. It reads
// the whole table, which takes some microseconds of CPU time for each connection.
func Traffic(ctx context.Context, yield func(first packet.Packet, toHost bool, bytes uint64)) (counted bool, err error) {
	switch text, err := os.ReadFile(accounting); {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil // no connection is tracked
	case err != nil:
		return false, fmt.Errorf("read whether bytes are counted: %w", err)
	case string(bytes.TrimSpace(text)) == "0":
		return false, nil
	}
	local, err := interfaceAddrs()
	if err != nil {
		return false, fmt.Errorf("list the node's addresses: %w", err)
	}
	t, err := openKernel(ctx)
	if err != nil {
		return false, err
	}
	defer t.close()
	return true, traffic(t, local, yield)
}

// traffic is Traffic of a table that counts. Connections from the node itself are left out:
// no policy is about them.
func traffic(t table, local addrSet, yield func(packet.Packet, bool, uint64)) error {
	var faults faults
	for e, err := range t.entries(filter{}) {
		if err != nil {
			faults.add(err)
			continue
		}
		p, ok := e.first()
		if !ok || e.status&statusExpected != 0 || local.has(p.Src.Addr()) {
			continue
		}
		if err := recovered(p, func() { yield(p, local.has(p.Dst.Addr()), e.bytes) }); err != nil {
			faults.add(err)
		}
	}
	return faults.err()
}
