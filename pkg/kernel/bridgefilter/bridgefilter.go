// Package bridgefilter drops the frames of bridged pods that no policy can decide about: all
// except IPv4, IPv6 and ARP without a VLAN tag. A bridge forwards other frames without calling
// the IP hooks, where nftables steers packets to the agent. Their payload can still reach a pod:
// a receiver removes a tag with the identifier 0 (IEEE 802.1Q, clause 6.9), and a bridge with
// VLAN filtering removes the tag of the receiver's VLAN.
//
// The package owns a table of the nftables family bridge. It knows the names of bridge ports,
// but no pods and no policies.
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

	"sigs.k8s.io/kube-network-policies/pkg/base/runner"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft/rule"
)

// TableName is the name of the table in the family bridge.
const TableName = "netpol-agent"

const (
	otherPortsSet   = "other-ports"
	preroutingChain = "prerouting"
	framesCounter   = "pod-frames"

	// verifyInterval bounds how long the table is missing after another process removed it.
	// It is also the time between retries of a failed write.
	verifyInterval = time.Minute
	// writeTimeout bounds the wait for the kernel, which serializes the transactions of all
	// processes.
	writeTimeout = 5 * time.Second
)

// writer writes the table. It is an nft.Table, except in tests.
type writer interface {
	Run(context.Context, *nft.Transaction) error
}

// Filter writes the table. Its methods may be called from any goroutine, Run only once.
type Filter struct {
	table    writer
	poked    chan struct{}
	failures prometheus.Counter

	mu   sync.Mutex
	want state

	// Owned by Run.
	wanted bool   // Set has asked for filtering at least once
	logged string // the last error, empty after a success
}

// state is the desired state of the table.
type state struct {
	filters    bool
	otherPorts []string
}

// New returns a Filter that has not accessed the kernel yet, and registers its metrics.
func New(reg prometheus.Registerer) (*Filter, error) {
	table, err := nft.New(knftables.BridgeFamily, TableName, nft.Options{Sets: []*knftables.Set{&otherPorts}})
	if err != nil {
		return nil, err
	}
	reg.MustRegister(droppedCollector{})
	return newFilter(table, reg), nil
}

func newFilter(table writer, reg prometheus.Registerer) *Filter {
	f := &Filter{table: table, poked: make(chan struct{}, 1), failures: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "netpol_bridge_filter_errors_total",
		Help: "Failed writes of the table that drops frames of pods at a bridge, retried every minute.",
	})}
	reg.MustRegister(f.failures)
	return f
}

// Set filters the frames that arrive at any bridge port except otherPorts, the ports of bridges
// without pods. So the frames of a new pod are filtered before the agent has seen its port. If
// filters is false, no frame is filtered. Set does not wait for the kernel.
func (f *Filter) Set(filters bool, otherPorts []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if filters == f.want.filters && slices.Equal(otherPorts, f.want.otherPorts) {
		return
	}
	f.want = state{filters, slices.Clone(otherPorts)}
	f.Verify()
}

// Verify schedules a rewrite of the table, because another process may have changed it.
func (f *Filter) Verify() {
	runner.Signal(f.poked)
}

// Run writes the table until ctx ends, and leaves it in place. It writes nothing until Set asks
// for filtering. Failed writes are counted and retried; an error is logged if it differs from
// the previous one.
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
				logger.Error(err, "Frames of pods at bridges pass without being filtered, retrying", "every", verifyInterval)
				f.logged = err.Error()
			}
		}
	}
}

func (f *Filter) sync(ctx context.Context) error {
	f.mu.Lock()
	want := f.want
	f.mu.Unlock()
	f.wanted = f.wanted || want.filters
	if !f.wanted {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if err := f.table.Run(ctx, plan(want)); err != nil {
		return fmt.Errorf("write table bridge %s: %w", TableName, err)
	}
	return nil
}

// otherPorts is the set with the port names of bridges without pods.
var otherPorts = knftables.Set{Name: otherPortsSet, Type: "ifname"}

// framesRule drops all frames except IPv4, IPv6 and ARP. For almost every frame the first match fails. The
// rule matches ports because bridges (meta ibrname) need CONFIG_NFT_BRIDGE_META, which some kernels lack.
var framesRule = rule.Rule{rule.EtherType.NoneOf(rule.EtherIPv4, rule.EtherARP, rule.EtherIPv6),
	rule.IIFName.NotIn(otherPortsSet), rule.Counter(framesCounter), rule.Drop}

// plan returns the transaction that writes the whole table, whatever its contents. It deletes no
// chain, because the kernel then drops the packets in all queues of the network namespace
// (nf_queue_nf_hook_drop).
func plan(want state) *nft.Transaction {
	// Before priority 0, where br_netfilter calls the IP hooks, the frames are still as they
	// were sent. After that the bridge itself removes tags.
	chain := knftables.Chain{
		Name: preroutingChain, Type: knftables.PtrTo(knftables.FilterType), Hook: knftables.PtrTo(knftables.PreroutingHook),
		Priority: knftables.PtrTo(knftables.BaseChainPriority("-300")),
	}
	tx := &nft.Transaction{}
	tx.Add(&knftables.Table{})
	tx.Add(&knftables.Counter{Name: framesCounter})
	tx.Add(&otherPorts)
	tx.Flush(&otherPorts)
	for _, name := range want.otherPorts {
		tx.Add(&knftables.Element{Set: otherPortsSet, Key: []string{name}})
	}
	tx.Add(&chain)
	tx.Flush(&chain)
	if want.filters {
		tx.AddRule(preroutingChain, framesRule)
	}
	return tx
}

var droppedDesc = prometheus.NewDesc("netpol_vlan_tag_frames_total",
	"Frames of pods at a bridge that were dropped: with a VLAN tag, or not of IPv4, IPv6 or ARP.", nil, nil)

// droppedCollector reads the table's counter at each scrape. Without a readable counter there is
// no sample.
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
		if counter, ok := object.(*nftables.CounterObj); ok && counter.Name == framesCounter {
			return counter.Packets, nil
		}
	}
	return 0, err
}
