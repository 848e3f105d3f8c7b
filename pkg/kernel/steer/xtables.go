package steer

import (
	"context"
	"encoding/binary"
	"errors"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/queuenum"
)

// Flags of struct xt_NFQ_info_v3, linux/netfilter/xt_NFQUEUE.h.
const (
	nfqBypass    = 0x1
	nfqCPUFanout = 0x2
)

// objectCounter is NFT_OBJECT_COUNTER, linux/netfilter/nf_tables.h.
const objectCounter = 1

// nfqueueTarget returns the NFQUEUE target, revision 3, for nft_compat.
func nfqueueTarget(queue, queues uint16, bypass bool) []expr.Any {
	var flags uint16
	if bypass {
		flags |= nfqBypass
	}
	if queues > 1 {
		flags |= nfqCPUFanout
	}
	// Three numbers of 16 bits in host byte order, padded to the alignment of xtables (XT_ALIGN),
	// which is 8 bytes on 64-bit machines.
	info := make(xt.Unknown, 8)
	binary.NativeEndian.PutUint16(info[0:], queue)
	binary.NativeEndian.PutUint16(info[2:], queues)
	binary.NativeEndian.PutUint16(info[4:], flags)
	return []expr.Any{&expr.Target{Name: "NFQUEUE", Rev: 3, Info: &info}}
}

// queues implements kernel. It reads the rules of divertChain, which every version has.
func (netlinkKernel) queues(context.Context) ([]uint16, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	table := &nftables.Table{Name: TableName, Family: nftables.TableFamilyINet}
	rules, err := conn.GetRules(table, &nftables.Chain{Name: divertChain, Table: table})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	var numbers []uint16
	for _, r := range rules {
		for _, e := range r.Exprs {
			switch e := e.(type) {
			case *expr.Queue:
				numbers = append(numbers, queuenum.Range{First: e.Num, Count: e.Total}.All()...)
			case *expr.Target:
				if info, ok := e.Info.(*xt.Unknown); ok && e.Name == "NFQUEUE" && len(*info) >= 4 {
					numbers = append(numbers, queuenum.Range{First: binary.NativeEndian.Uint16(*info), Count: binary.NativeEndian.Uint16((*info)[2:])}.All()...)
				}
			}
		}
	}
	return numbers, err
}
