// Package bridgefilter drops frames that one pod of a bridge can send to another past every
// policy: those with the VLAN tag 0. A bridge forwards them without calling the hooks of IP,
// where nftables steers packets to the agent, and the receiver takes them as frames without a
// tag (IEEE 802.1Q, clause 6.9: a tag with the identifier 0 has only a priority). Any other tag
// leads to an interface of its own for that VLAN, if the receiving pod has one.
//
// The package owns a table of nftables' family for bridges. It knows the names of bridges, and
// neither pods nor policies.
package bridgefilter

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"
	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/nft"
)

// TableName is the name of the table, which is of the family bridge.
const TableName = "kube-network-policies"

const (
	bridgesSet    = "bridges"
	forwardChain  = "forward"
	taggedCounter = "vlan-tag-0"

	// verifyInterval bounds how long a table that another process has removed stays away,
	// and is the time between a failed write and the next.
	verifyInterval = time.Minute
	// writeTimeout bounds the wait for the kernel, which handles the transactions of all
	// processes one after the other.
	writeTimeout = 5 * time.Second
)

// writer writes the table. It is an nft.Table, except in tests.
type writer interface {
	Run(context.Context, *nft.Transaction) error
}

// Filter keeps the table. Its methods may be called from any goroutine, Run only once.
type Filter struct {
	table    writer
	poked    chan struct{}
	failures prometheus.Counter

	mu      sync.Mutex
	bridges []string

	// Used by Run alone.
	wanted bool   // whether there has been a bridge
	logged string // the last error, empty after a success
}

// New returns a Filter that has not accessed the kernel yet, and registers its metrics.
func New(reg prometheus.Registerer) (*Filter, error) {
	table, err := nft.New(knftables.BridgeFamily, TableName, nft.Options{Sets: []*knftables.Set{&bridges}})
	if err != nil {
		return nil, err
	}
	reg.MustRegister(droppedCollector{})
	return newFilter(table, reg), nil
}

func newFilter(table writer, reg prometheus.Registerer) *Filter {
	f := &Filter{table: table, poked: make(chan struct{}, 1), failures: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "netpol_bridge_filter_errors_total",
		Help: "Failed writes of the nftables table that drops frames with VLAN tag 0 between pods of one bridge.",
	})}
	reg.MustRegister(f.failures)
	return f
}

// Set makes these the bridges whose frames are filtered. It does not wait for the kernel.
func (f *Filter) Set(bridges []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if slices.Equal(bridges, f.bridges) {
		return
	}
	f.bridges = slices.Clone(bridges)
	f.Verify()
}

// Verify has the table written again soon, because another process may have changed it.
func (f *Filter) Verify() {
	select {
	case f.poked <- struct{}{}:
	default:
	}
}

// Run writes the table until ctx ends, and leaves it in place. Without a bridge it writes
// nothing. An error is logged when it is another one than before, counted, and retried.
func (f *Filter) Run(ctx context.Context) error {
	logger := klog.LoggerWithName(klog.FromContext(ctx), "bridgefilter")
	verify := time.NewTicker(verifyInterval)
	defer verify.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.poked:
		case <-verify.C:
		}
		err := f.sync(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			f.logged = ""
		default:
			f.failures.Inc()
			if f.logged != err.Error() {
				logger.Error(err, "Frames with VLAN tag 0 between pods of one bridge are not dropped, retrying", "every", verifyInterval)
				f.logged = err.Error()
			}
		}
	}
}

func (f *Filter) sync(ctx context.Context) error {
	f.mu.Lock()
	bridges := f.bridges
	f.mu.Unlock()
	f.wanted = f.wanted || len(bridges) > 0
	if !f.wanted {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if err := f.table.Run(ctx, plan(bridges)); err != nil {
		return fmt.Errorf("write table bridge %s: %w", TableName, err)
	}
	return nil
}

// bridges is the set of the names of bridges.
var bridges = knftables.Set{Name: bridgesSet, Type: "ifname"}

// plan makes the table what it should be, whatever it was. It deletes no chain: that would
// drop the packets that wait in any queue of the network namespace.
func plan(names []string) *nft.Transaction {
	chain := knftables.Chain{
		Name: forwardChain, Type: knftables.PtrTo(knftables.FilterType), Hook: knftables.PtrTo(knftables.ForwardHook),
		Priority: knftables.PtrTo(knftables.BaseChainPriority("-300")),
	}
	tx := &nft.Transaction{}
	tx.Add(&knftables.Table{})
	tx.Add(&knftables.Counter{Name: taggedCounter})
	tx.Add(&bridges)
	tx.Flush(&bridges)
	for _, name := range names {
		tx.Add(&knftables.Element{Set: bridgesSet, Key: []string{name}})
	}
	tx.Add(&chain)
	tx.Flush(&chain)
	for _, tag := range []string{"8021q", "8021ad"} {
		tx.Add(&knftables.Rule{
			Chain: forwardChain,
			Rule:  fmt.Sprintf("meta ibrname @%s ether type %s vlan id 0 counter name %s drop", bridgesSet, tag, taggedCounter),
		})
	}
	return tx
}

// Cleanup removes the table. This drops the packets that wait in any queue of the network
// namespace. It is no error if there is no table.
func Cleanup() error {
	if err := cleanup(); err != nil {
		return fmt.Errorf("remove table bridge %s: %w", TableName, err)
	}
	return nil
}

func cleanup() error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyBridge)
	if err != nil {
		return err
	}
	for _, table := range tables {
		if table.Name == TableName {
			conn.DelTable(table)
			return conn.Flush()
		}
	}
	return nil
}

var droppedDesc = prometheus.NewDesc("netpol_vlan_tag_frames_total",
	"Frames with VLAN tag 0 that were dropped between pods of one bridge.", nil, nil)

// droppedCollector reads the counter of the table when it is scraped. There is no sample if
// it cannot be read.
type droppedCollector struct{}

// Describe implements prometheus.Collector.
func (droppedCollector) Describe(ch chan<- *prometheus.Desc) { ch <- droppedDesc }

// Collect implements prometheus.Collector.
func (droppedCollector) Collect(ch chan<- prometheus.Metric) {
	if n, err := dropped(); err == nil {
		ch <- prometheus.MustNewConstMetric(droppedDesc, prometheus.CounterValue, float64(n))
	}
}

// dropped returns the number of dropped frames, 0 if there is no table.
func dropped() (uint64, error) {
	conn, err := nftables.New()
	if err != nil {
		return 0, err
	}
	objects, err := conn.GetObjects(&nftables.Table{Name: TableName, Family: nftables.TableFamilyBridge})
	for _, object := range objects {
		if counter, ok := object.(*nftables.CounterObj); ok && counter.Name == taggedCounter {
			return counter.Packets, nil
		}
	}
	return 0, err
}
