package steer

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nlattr"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/queuenum"
)

// objectCounter is NFT_OBJECT_COUNTER, linux/netfilter/nf_tables.h.
const objectCounter = 1

// queueNumbers returns the queue numbers in the rules of a chain of a table, none if it does not exist.
// With an empty name it is about all chains.
func queueNumbers(conn *netlink.Conn, table argument, chain string) (numbers []uint16, err error) {
	rules, err := get(conn, unix.NFT_MSG_GETRULE, netlink.Dump, table)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("list rules: %w", err)
	}
	for _, r := range rules {
		if chain != "" && nlattr.Text(nlattr.Get(r, unix.NFTA_RULE_CHAIN)) != chain {
			continue
		}
		for _, e := range nlattr.All(nlattr.Get(r, unix.NFTA_RULE_EXPRESSIONS)) {
			numbers = append(numbers, queuesOf(nlattr.Text(nlattr.Get(e, unix.NFTA_EXPR_NAME)), nlattr.Get(e, unix.NFTA_EXPR_DATA)).All()...)
		}
	}
	return numbers, nil
}

// queuesOf returns the queue numbers of an expression: a queue statement, or the NFQUEUE target of
// xtables (struct xt_NFQ_info_v3), whose numbers are in host byte order.
func queuesOf(expression string, data []byte) queuenum.Range {
	switch info := nlattr.Get(data, unix.NFTA_TARGET_INFO); {
	case expression == "queue":
		return queuenum.Range{First: uint16(nlattr.Number(nlattr.Get(data, unix.NFTA_QUEUE_NUM))), Count: max(1, uint16(nlattr.Number(nlattr.Get(data, unix.NFTA_QUEUE_TOTAL))))}
	case expression == "target" && nlattr.Text(nlattr.Get(data, unix.NFTA_TARGET_NAME)) == "NFQUEUE" && len(info) >= 4:
		return queuenum.Range{First: binary.NativeEndian.Uint16(info), Count: binary.NativeEndian.Uint16(info[2:])}
	}
	return queuenum.Range{}
}
