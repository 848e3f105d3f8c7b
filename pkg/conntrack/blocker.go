package conntrack

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
	"sigs.k8s.io/kube-network-policies/pkg/runner"
)

// DefaultMark is the bit of connection marks that the agent uses unless configured
// otherwise. It lies below those of kube-proxy (0x4000, 0x8000), portmap (0x2000),
// kube-router and Weave (0x10000 to 0x40000), Tailscale (0xff0000) and Calico
// (0xffff0000), and above that of the VPC plugin of AWS (0x80).
const DefaultMark uint32 = 0x800

const (
	// minInterval bounds the cost of frequent changes: a pass lists the whole
	// table.
	minInterval = 5 * time.Second
	// retryInterval is no shorter for the same reason.
	retryInterval = 5 * time.Second
	// maxInterval bounds how long a missed connection stays as it is. The kernel
	// may move entries while it lists them, and when two processes write a mark
	// at the same time, one of the writes is lost.
	maxInterval = time.Minute
	// passTimeout ends a pass when the kernel does not answer.
	passTimeout = 30 * time.Second
)

// Verdict is what happens to an established connection.
type Verdict uint8

const (
	Block   Verdict = iota // no packet passes, in either direction; zero, so that a missing answer fails closed
	Keep                   // unchanged, blocked or not
	Unblock                // all packets pass
)

// Evaluator decides about the connection that p opened. p is the packet as policies
// see it: after DNAT and before SNAT. toHost is true if its destination is this node
// itself. An Evaluator is called from one goroutine.
type Evaluator func(p packet.Packet, toHost bool) Verdict

// Config configures a Blocker.
type Config struct {
	// Mark is the one bit of connection marks that a Blocker sets and clears.
	// All other bits are left unchanged.
	Mark uint32
	// Registerer receives the metrics.
	Registerer prometheus.Registerer
}

// Validate reports every invalid field.
func (c Config) Validate() error {
	var errs []error
	if bits.OnesCount32(c.Mark) != 1 {
		errs = append(errs, fmt.Errorf("Mark %#x is not exactly one bit", c.Mark))
	}
	if c.Registerer == nil {
		errs = append(errs, errors.New("Registerer is nil"))
	}
	return errors.Join(errs...)
}

// Blocker keeps the marks of all connections as the latest Evaluator decides. Its
// methods may be called from any goroutine; Run is called once.
type Blocker struct {
	mark    uint32
	runner  *runner.Runner
	metrics *metrics
	desired atomic.Pointer[Evaluator] // the latest, nil before the first

	// Fakes in tests.
	open      func(context.Context) (table, error)
	nodeAddrs func() (addrSet, error)

	applied *Evaluator // of the last complete pass; only sync uses it
}

// New returns a Blocker that has not touched the kernel yet.
func New(cfg Config) (*Blocker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("conntrack: %w", err)
	}
	b := &Blocker{
		mark:      cfg.Mark,
		metrics:   newMetrics(cfg.Registerer),
		open:      openKernel,
		nodeAddrs: interfaceAddrs,
	}
	b.runner = runner.New(runner.Config{
		MinInterval:   minInterval,
		RetryInterval: retryInterval,
		MaxInterval:   maxInterval,
	}, b.sync)
	return b, nil
}

// Set stores the latest Evaluator and triggers a pass, which begins at once unless
// the last one began less than five seconds ago. It never blocks.
func (b *Blocker) Set(evaluate Evaluator) {
	b.desired.Store(&evaluate)
	b.runner.Poke()
}

// Recheck triggers a pass, because connections may have been accepted without being
// evaluated. It never blocks.
func (b *Blocker) Recheck() { b.runner.Poke() }

// Run passes over the table whenever there is a new Evaluator, and every minute,
// until ctx ends. Blocked connections then stay blocked.
func (b *Blocker) Run(ctx context.Context) error {
	logger := klog.LoggerWithName(klog.FromContext(ctx), "conntrack")
	logger.Info("Started blocking established connections", "mark", fmt.Sprintf("%#x", b.mark))
	b.runner.Run(klog.NewContext(ctx, logger))
	logger.Info("Stopped blocking established connections; blocked ones stay blocked")
	return nil
}

// sync is one run of the runner.
func (b *Blocker) sync(ctx context.Context) error {
	evaluate := b.desired.Load()
	if evaluate == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	start := time.Now()
	err := b.pass(ctx, *evaluate)
	b.metrics.passed(time.Since(start), err)
	if err != nil {
		return err
	}
	if b.applied != evaluate {
		b.applied = evaluate
		// A connection whose first packet was accepted by the previous policies
		// enters the table only when the packet leaves the node: make another pass.
		b.runner.Poke()
	}
	return nil
}
