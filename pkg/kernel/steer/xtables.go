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

// objectCounter is NFT_OBJECT_COUNTER, linux/netfilter/nf_tables.h.
const objectCounter = 1

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
