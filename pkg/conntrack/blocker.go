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

// DefaultMark is the bit of connection marks that is ours unless the operator
// moves it. It lies below those of kube-proxy (0x4000, 0x8000), portmap (0x2000),
// kube-router and Weave (0x10000 to 0x40000), Tailscale (0xff0000) and Calico
// (0xffff0000), and above that of the VPC plugin of AWS (0x80).
const DefaultMark uint32 = 0x800

const (
	// minInterval bounds what a cluster in motion costs: a pass walks the whole
	// table.
	minInterval = 5 * time.Second
	// retryInterval is no shorter for the same reason.
	retryInterval = 5 * time.Second
	// maxInterval bounds how long a connection stays that a pass has missed.
	// The kernel may move entries while it lists them, and a mark that two
	// write at the same time keeps what one of them wrote.
	maxInterval = time.Minute
	// passTimeout ends a pass whose kernel does not answer.
	passTimeout = 30 * time.Second
)

// Verdict is what becomes of an established connection.
type Verdict uint8

const (
	Block   Verdict = iota // nothing passes, in either direction; zero, so that a forgotten answer fails closed
	Keep                   // as it is, cut or not
	Unblock                // everything passes
)

// Evaluator answers for the connection that p opened. p is the packet as policy sees
// it: behind DNAT and before SNAT. toHost tells that its destination is this node
// itself. An Evaluator is called from one goroutine.
type Evaluator func(p packet.Packet, toHost bool) Verdict

// Config says which bit is ours.
type Config struct {
	// Mark is the one bit of connection marks that a Blocker sets and clears.
	// All other bits stay as they are.
	Mark uint32
	// Registerer receives the metrics.
	Registerer prometheus.Registerer
}

// Validate names every field that cannot work.
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

// Blocker keeps the marks of all connections as the latest Evaluator wants them. Its
// methods may be called from any goroutine; Run once.
type Blocker struct {
	mark    uint32
	runner  *runner.Runner
	metrics *metrics
	desired atomic.Pointer[Evaluator] // the latest, nil before the first

	// Fakes in tests.
	open      func(context.Context) (table, error)
	nodeAddrs func() (addrSet, error)

	applied *Evaluator // the last one that a whole pass asked; of sync alone
}

// New returns a Blocker that has not touched the kernel yet. A faulty Config is
// refused whole.
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

// Set keeps the latest Evaluator and has it asked soon: at once after five quiet
// seconds. It never blocks.
func (b *Blocker) Set(evaluate Evaluator) {
	b.desired.Store(&evaluate)
	b.runner.Poke()
}

// Recheck has all connections judged soon, because some may have been accepted that
// nobody was asked about. It never blocks.
func (b *Blocker) Recheck() { b.runner.Poke() }

// Run passes over the table whenever there is a new Evaluator, and every minute,
// until ctx ends. What is cut then stays cut.
func (b *Blocker) Run(ctx context.Context) error {
	logger := klog.LoggerWithName(klog.FromContext(ctx), "conntrack")
	logger.Info("Cutting of established connections starts", "mark", fmt.Sprintf("%#x", b.mark))
	b.runner.Run(klog.NewContext(ctx, logger))
	logger.Info("Cutting of established connections stops, what is cut stays cut")
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
		// A first packet that passed by the last policies is not in the table
		// before it has left the node: look once more.
		b.runner.Poke()
	}
	return nil
}
