package neighbours

import (
	"context"
	"encoding/binary"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/florianl/go-nfqueue/v2"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

const (
	upstreamTable = "kube-network-policies"
	upstreamQueue = 98 // in its install.yaml
)

// upstream acts like kube-network-policies v1.1.1: it deletes and makes its table at each sync, and
// queues what pods send and receive. It accepts everything, so that the agent alone denies. It uses the
// NFQUEUE target, which kernels without the queue statement have, too.
type upstream struct {
	stop func() // it leaves its table
}

func startUpstream(t *testing.T, n node) upstream {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var listener *nfqueue.Nfqueue
	n.on(t, func() (err error) {
		listener, err = nfqueue.Open(&nfqueue.Config{NfQueue: upstreamQueue, MaxPacketLen: 128, MaxQueueLen: 1024, Copymode: nfqueue.NfQnlCopyPacket, WriteTimeout: time.Second})
		if err != nil {
			return err
		}
		return listener.RegisterWithErrorFunc(ctx, func(a nfqueue.Attribute) int {
			_ = listener.SetVerdict(*a.PacketID, nfqueue.NfAccept)
			return 0
		}, func(error) int { return 0 })
	})
	n.on(t, n.syncUpstream)
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			_ = n.Nodes[0].Do(n.syncUpstream)
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	u := upstream{stop: sync.OnceFunc(func() { cancel(); running.Wait(); _ = listener.Close() })}
	t.Cleanup(u.stop)
	return u
}

func (n node) on(t *testing.T, do func() error) {
	t.Helper()
	if err := n.Nodes[0].Do(do); err != nil {
		t.Fatal(err)
	}
}

// syncUpstream writes the table as one transaction.
func (n node) syncUpstream() error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	table := &nftables.Table{Name: upstreamTable, Family: nftables.TableFamilyINet}
	conn.AddTable(table)
	conn.DelTable(table)
	conn.AddTable(table)
	chain := conn.AddChain(&nftables.Chain{
		Name: "postrouting", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityNATSource - 5),
	})
	for _, f := range []struct {
		set    string
		key    nftables.SetDatatype
		proto  byte
		family lab.Family
		offset [2]uint32 // of source and destination
	}{
		{"podips-v4", nftables.TypeIPAddr, 2, lab.IPv4, [2]uint32{12, 16}},
		{"podips-v6", nftables.TypeIP6Addr, 10, lab.IPv6, [2]uint32{8, 24}},
	} {
		var pods []nftables.SetElement
		for _, name := range []string{"x/web", "y/web", "y/db", "z/out"} {
			pods = append(pods, nftables.SetElement{Key: n.Hosts[name].Addr(f.family).AsSlice()})
		}
		set := &nftables.Set{Table: table, Name: f.set, KeyType: f.key}
		if err := conn.AddSet(set, pods); err != nil {
			return err
		}
		for _, offset := range f.offset {
			conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
				&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{f.proto}},
				&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: f.key.Bytes},
				&expr.Lookup{SourceRegister: 1, SetName: f.set, SetID: set.ID},
				nfqueueTarget(upstreamQueue),
			}})
		}
	}
	return conn.Flush()
}

// nfqueueTarget is struct xt_NFQ_info_v3, in which numbers are in host byte order.
func nfqueueTarget(queue uint16) expr.Any {
	info := make(xt.Unknown, 8)
	binary.NativeEndian.PutUint16(info, queue)
	binary.NativeEndian.PutUint16(info[2:], 1)
	return &expr.Target{Name: "NFQUEUE", Rev: 3, Info: &info}
}

// TestUpstreamAgent: this agent comes beside the upstream one, which then goes. Its table is not touched while
// it lives, and what it leaves is removed by cleanup, beside this agent, too.
func TestUpstreamAgent(t *testing.T) {
	n := newNode(t)
	u := startUpstream(t, n)
	agent := n.agent(t) // looks at the table when it starts
	labtest.WaitReady(t, agent)
	talk := n.talk(t, "y/db", "x/web")
	n.Expect(t, slices.Concat(denied, allowed)...)
	n.Replace(t, "x", closed)
	talk.ends(t)
	n.Expect(t, labtest.No("y/db", "x/web", "tcp/80"))
	n.Replace(t, "x", isolated)
	n.Expect(t, slices.Concat(denied, allowed)...)
	if strings.Contains(agent.Log(), "earlier version") {
		t.Error("the table is taken for one of an earlier version")
	}
	tables := func(want ...string) {
		t.Helper()
		for _, name := range []string{upstreamTable, "netpol-agent"} {
			_, err := n.Nodes[0].Run(t.Context(), "", "nft", "list", "table", "inet", name)
			if exists := slices.Contains(want, name); exists != (err == nil) {
				t.Errorf("table %s is there: %v, want %v", name, err == nil, exists)
			}
		}
	}

	n.run(t, labtest.AgentBinary+" cleanup")
	tables(upstreamTable, "netpol-agent")
	n.Expect(t, slices.Concat(denied, allowed)...)
	for _, metric := range []string{"netpol_steer_external_changes_total", "netpol_steer_repairs_total"} {
		if changes := labtest.Metrics(t, agent).Sum(metric); changes != 0 {
			t.Errorf("%s is %v", metric, changes)
		}
	}
	u.stop()
	n.Expect(t, denied...)
	tables(upstreamTable, "netpol-agent")
	n.run(t, labtest.AgentBinary+" cleanup")
	tables("netpol-agent")
	n.Expect(t, slices.Concat(denied, allowed)...)

	u = startUpstream(t, n)
	n.remove(t, agent)
	tables(upstreamTable)
	u.stop()
	n.run(t, labtest.AgentBinary+" cleanup")
	tables()
}
