package steer

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/handover"
)

const (
	// DefaultShare is well above the connection rate of usual pods, and low enough that many
	// pods can use their shares at the same time.
	DefaultShare uint32 = 1000
	// MaxShare is above the packet rate of any queue.
	MaxShare uint32 = 1000000
)

// Divert is the mechanism by which the table sends a packet to a queue.
type Divert uint8

const (
	// DivertAuto is DivertQueue where the kernel supports it, else DivertXTables.
	DivertAuto Divert = iota
	// DivertQueue is the nftables queue statement.
	DivertQueue
	// DivertXTables is the NFQUEUE target of xtables through nft_compat, for
	// kernels without the queue statement.
	DivertXTables
)

var divertNames = [...]string{DivertAuto: "auto", DivertQueue: "queue", DivertXTables: "xtables"}

// String returns the name of d in logs and metrics.
func (d Divert) String() string {
	if int(d) < len(divertNames) {
		return divertNames[d]
	}
	return fmt.Sprintf("Divert(%d)", uint8(d))
}

// EarlyUDP selects the hook at which new UDP connections are queued whose destination
// was translated.
//
// Two packets of such a connection may wait in a queue at the same time, with different
// translated destinations: DNS clients ask for IPv4 and IPv6 addresses at the same time
// from one socket. Kernels before 6.12 then give the second packet the destination of
// the first, but keep the route to its own destination, and the packet is lost. At
// prerouting it has no route yet.
type EarlyUDP uint8

const (
	// EarlyAuto is EarlyOff where the kernel is known not to need EarlyOn.
	EarlyAuto EarlyUDP = iota
	// EarlyOn queues at prerouting, after DNAT.
	EarlyOn
	// EarlyOff queues at postrouting.
	EarlyOff
)

var earlyNames = [...]string{EarlyAuto: "auto", EarlyOn: "true", EarlyOff: "false"}

// String returns the name of e in logs.
func (e EarlyUDP) String() string {
	if int(e) < len(earlyNames) {
		return earlyNames[e]
	}
	return fmt.Sprintf("EarlyUDP(%d)", uint8(e))
}

// Config describes the table. It is constant for the life of a Steerer.
type Config struct {
	// Queue is the number of the first queue and Queues the number of consecutive
	// queues. The kernel distributes packets among them by CPU.
	Queue, Queues uint16
	// Bypass makes the kernel accept packets if no process listens on the queue (fail open).
	// If false, it drops them.
	Bypass bool
	// ObserveQueue is the number of the queue of DNS messages for the observer. Packets
	// continue to the steering chains after it, even if it has no listener. Zero means that
	// there is no observer.
	ObserveQueue uint16
	// Mark is our single bit of packet marks and conntrack marks. The agent sets it in the
	// packet mark of packets that it accepts, and preserves all other bits.
	Mark uint32
	// BlockMark is the single bit of conntrack marks that blocks a connection in both
	// directions. This package does not set it. In packet marks the agent sets it without Mark in
	// denied packets that the table answers, and with Mark in accepted packets whose class the
	// kernel may accept. In other accepted packets it must clear it.
	BlockMark uint32
	// Share is the number of packets per second of each local pod that go to the first
	// queues. Packets above this rate go to the overflow queues. Zero means that there are no
	// shares.
	Share uint32
	// OverflowQueue is the number of the first overflow queue. There are as many as
	// Queues.
	OverflowQueue uint16
	// AuditQueue is the number of the queue for packets that only audited policies select. The
	// kernel accepts them if no process listens on it. Zero means that they are not queued.
	AuditQueue uint16
	// Divert is the mechanism that queues packets.
	Divert Divert
	// EarlyUDP selects the hook for new UDP connections whose destination was
	// translated.
	EarlyUDP EarlyUDP
	// SCTPPerPacket queues every SCTP packet in the original direction, for kernels
	// that track SCTP by addresses only.
	SCTPPerPacket bool
	// Holder identifies this agent. Its queue is bound already.
	Holder handover.Holder
	// Agents is what is known of the agents of the node. Nil means that there is no
	// other one.
	Agents handover.Agents
	// Applied is called with the Sets.Serial of each desired state that the kernel has
	// accepted. It may be nil. It is called from the goroutine that writes, and must
	// not block.
	Applied func(serial uint64)
	// Repaired is called after each repair of a change by another process: meanwhile packets
	// may have passed that should have been steered. It may be nil. It is called from the
	// goroutine that writes, and must not block.
	Repaired func()
	// SourceCheck adds the chains that check the sources of packets and those that keep pods
	// out of tunnels, see Sets.CheckSources. It is ignored on kernels without fib expressions.
	SourceCheck bool
	// Parts are further parts of the table. Those that the kernel lacks a feature for are left out.
	Parts []Part
	// Registerer receives the metrics.
	Registerer prometheus.Registerer

	answers bool // the table answers denied packets, see Sets.Answered
}

// Validate returns an error that names every invalid field.
func (c Config) Validate() error {
	var errs []error
	if c.Queues == 0 {
		errs = append(errs, errors.New("Queues is 0"))
	}
	if last := c.deciding().Last(); c.Queues > 0 && last > 0xffff {
		errs = append(errs, fmt.Errorf("Queues: the last queue would be %d, above 65535", last))
	}
	if c.ObserveQueue != 0 && c.deciding().Contains(c.ObserveQueue) {
		errs = append(errs, fmt.Errorf("ObserveQueue %d is one of the other queues", c.ObserveQueue))
	}
	if err := checkMark(c.Mark); err != nil {
		errs = append(errs, fmt.Errorf("Mark %#x %w", c.Mark, err))
	}
	if err := c.checkBlockMark(); err != nil {
		errs = append(errs, fmt.Errorf("BlockMark %#x %w", c.BlockMark, err))
	}
	if int(c.Divert) >= len(divertNames) {
		errs = append(errs, fmt.Errorf("Divert %d is unknown", c.Divert))
	}
	if int(c.EarlyUDP) >= len(earlyNames) {
		errs = append(errs, fmt.Errorf("EarlyUDP %d is unknown", c.EarlyUDP))
	}
	if err := c.validateShare(); err != nil {
		errs = append(errs, err)
	}
	if err := c.validateAudit(); err != nil {
		errs = append(errs, err)
	}
	if c.Registerer == nil {
		errs = append(errs, errors.New("Registerer is nil"))
	}
	return errors.Join(errs...)
}

func (c Config) checkBlockMark() error {
	if c.BlockMark == c.Mark {
		return errors.New("is the same bit as Mark")
	}
	return checkMark(c.BlockMark)
}

// choose replaces DivertAuto and returns an error if the kernel does not support d.
func (d Divert) choose(caps Capabilities) (Divert, error) {
	switch d {
	case DivertQueue:
		return d, unavailable(d, caps.Queue)
	case DivertXTables:
		return d, unavailable(d, caps.XTables)
	}
	if caps.Queue == nil {
		return DivertQueue, nil
	}
	if caps.XTables == nil {
		return DivertXTables, nil
	}
	return DivertAuto, errors.Join(unavailable(DivertQueue, caps.Queue), unavailable(DivertXTables, caps.XTables))
}

// choose replaces EarlyAuto.
func (e EarlyUDP) choose(caps Capabilities) EarlyUDP {
	switch {
	case e != EarlyAuto:
		return e
	case caps.UDPClash == nil:
		return EarlyOff
	}
	return EarlyOn
}

func unavailable(d Divert, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("divert=%v: %w", d, err)
}
