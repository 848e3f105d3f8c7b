package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
)

// Names in the table of setups without an agent.
const (
	hopTable  = "bench"
	chainName = "decide"
)

// acceptRules drop what policies deny and accept what they allow.
var acceptRules = fmt.Sprintf("ip daddr %s drop\naccept", denied)

// hop returns a table with the agent's hooks and with rules for new connections.
func hop(rules string) string {
	return fmt.Sprintf(`table inet %[1]s {
	chain %[2]s {
		%[3]s
	}
	chain postrouting {
		type filter hook postrouting priority srcnat - 5
		ct state established,related accept
		goto %[2]s
	}
}
`, hopTable, chainName, rules)
}

// divert distributes new connections over queues from 0 up like the agent's rules. It uses
// the kernel's queue statement or, if there is none, the NFQUEUE target of xtables, for
// which nft has no syntax.
func divert(ctx context.Context, node *lab.Node, queues int) error {
	rule := "queue to 0"
	if queues > 1 {
		rule = fmt.Sprintf("queue flags fanout to 0-%d", queues-1)
	}
	if _, err := node.Run(ctx, hop(rule), "nft", "-f", "-"); err == nil {
		return nil
	}
	if _, err := node.Run(ctx, hop(""), "nft", "-f", "-"); err != nil {
		return err
	}
	namespace, err := os.Open(node.NetNS())
	if err != nil {
		return err
	}
	defer namespace.Close()
	conn, err := nftables.New(nftables.WithNetNSFd(int(namespace.Fd())))
	if err != nil {
		return err
	}
	info := make(xt.Unknown, 8) // struct xt_NFQ_info_v3, padded: queues from 0 up
	binary.NativeEndian.PutUint16(info[2:], uint16(queues))
	if queues > 1 {
		const fanout = 1 << 1 // NFQ_FLAG_CPU_FANOUT
		binary.NativeEndian.PutUint16(info[4:], fanout)
	}
	table := &nftables.Table{Name: hopTable, Family: nftables.TableFamilyINet}
	conn.AddRule(&nftables.Rule{
		Table: table,
		Chain: &nftables.Chain{Name: chainName, Table: table},
		Exprs: []expr.Any{&expr.Target{Name: "NFQUEUE", Rev: 3, Info: &info}},
	})
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("on %s: divert by xtables: %w", node.Name, err)
	}
	return nil
}
