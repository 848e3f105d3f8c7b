package steer

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// DefaultMark is the default of Config.Mark.
	DefaultMark uint32 = 0x1000

	// kubeProxyMarks are the bits of kube-proxy's KUBE-MARK-DROP and
	// KUBE-MARK-MASQ.
	kubeProxyMarks uint32 = 0x8000 | 0x4000

	// DefaultShare is well above the connection rate of usual pods, and low enough
	// for many pods to use their shares at the same time.
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

// String returns the name of d in flags, logs and metrics.
func (d Divert) String() string {
	if int(d) < len(divertNames) {
		return divertNames[d]
	}
	return fmt.Sprintf("Divert(%d)", uint8(d))
}

// MarshalText implements encoding.TextMarshaler.
func (d Divert) MarshalText() ([]byte, error) {
	return []byte(d.String()), nil
}

// UnmarshalText parses auto, queue or xtables, so that a Divert can be a flag.
func (d *Divert) UnmarshalText(text []byte) error {
	i, err := nameIndex(divertNames[:], text)
	*d = Divert(i)
	return err
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

// String returns the name of e in flags and logs.
func (e EarlyUDP) String() string {
	if int(e) < len(earlyNames) {
		return earlyNames[e]
	}
	return fmt.Sprintf("EarlyUDP(%d)", uint8(e))
}

// MarshalText implements encoding.TextMarshaler.
func (e EarlyUDP) MarshalText() ([]byte, error) {
	return []byte(e.String()), nil
}

// UnmarshalText parses auto, true or false, so that an EarlyUDP can be a flag.
func (e *EarlyUDP) UnmarshalText(text []byte) error {
	i, err := nameIndex(earlyNames[:], text)
	*e = EarlyUDP(i)
	return err
}

// nameIndex returns the index of text in names, 0 with an error.
func nameIndex(names []string, text []byte) (int, error) {
	i := slices.Index(names, string(text))
	if i < 0 {
		return 0, fmt.Errorf("%q is not one of %s", text, strings.Join(names, ", "))
	}
	return i, nil
}

// Config describes the table. It is constant for the life of a Steerer.
type Config struct {
	// Queue is the number of the first queue and Queues the number of consecutive
	// queues. The kernel distributes packets among them by CPU.
	Queue, Queues uint16
	// Bypass has the kernel accept packets when no process listens on the queue (fail
	// open). When false it drops them.
	Bypass bool
	// ObserveQueue is the number of the queue of DNS messages for the observer.
	// Packets continue to the steering chains after it, and without a listener. Zero
	// means that there is no observer.
	ObserveQueue uint16
	// Mark is the one bit of packet mark and conntrack mark that is ours. The
	// agent sets it in the packet mark of packets that it accepts, and keeps all
	// other bits.
	Mark uint32
	// BlockMark is the one bit of the conntrack mark that blocks a connection in both
	// directions. This package does not set it. Zero means that no connection is
	// blocked.
	BlockMark uint32
	// Share is the number of packets per second of each local pod that go to the
	// first queues. What exceeds it goes to the overflow queues. Zero means that
	// there are no shares.
	Share uint32
	// OverflowQueue is the number of the first overflow queue. There are as many as
	// Queues.
	OverflowQueue uint16
	// AuditQueue is the number of the queue for packets that only audited policies
	// select. The kernel accepts them when no process listens on it. Zero means that
	// they are not queued.
	AuditQueue uint16
	// RememberMark is the one bit of the packet mark with which the agent marks those
	// accepted packets whose class the kernel shall remember as allowed. In packets with
	// Mark the agent must clear it otherwise. It may be the bit of BlockMark, which is one
	// of the conntrack mark. Zero means that no verdicts are remembered.
	RememberMark uint32
	// RememberFor is how long a class is remembered as allowed, in whole seconds.
	RememberFor time.Duration
	// Divert is the mechanism that queues packets.
	Divert Divert
	// EarlyUDP selects the hook for new UDP connections whose destination was
	// translated.
	EarlyUDP EarlyUDP
	// SCTPPerPacket queues every SCTP packet in the original direction, for kernels
	// that track SCTP by addresses only.
	SCTPPerPacket bool
	// Holder identifies this agent. Its queue is bound already.
	Holder Holder
	// Agents is what is known of the agents of the node. Nil means that there is no
	// other one.
	Agents Agents
	// Applied is called with the Sets.Serial of each desired state that the kernel has
	// accepted. It may be nil. It is called from the goroutine that writes, and must
	// not block.
	Applied func(serial uint64)
	// Repaired is called each time a change of the table by another process was
	// repaired: packets may have passed meanwhile that should have been steered. It may
	// be nil. It is called from the goroutine that writes, and must not block.
	Repaired func()
	// SourceCheck adds the chains that check the sources of packets and those that
	// keep pods out of tunnels, see Sets.CheckSources. It is ignored on kernels that
	// cannot look up routes.
	SourceCheck bool
	// Registerer receives the metrics.
	Registerer prometheus.Registerer
}

// Validate returns an error that names every invalid field.
func (c Config) Validate() error {
	var errs []error
	if c.Queues == 0 {
		errs = append(errs, errors.New("Queues is 0"))
	}
	if last := uint32(c.Queue) + uint32(c.Queues) - 1; c.Queues > 0 && last > 0xffff {
		errs = append(errs, fmt.Errorf("Queues: the last queue would be %d, above 65535", last))
	}
	if c.ObserveQueue != 0 && c.ObserveQueue >= c.Queue && c.ObserveQueue-c.Queue < c.Queues {
		errs = append(errs, fmt.Errorf("ObserveQueue %d is one of the other queues", c.ObserveQueue))
	}
	if err := CheckMark(c.Mark); err != nil {
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
	if err := c.validateRemember(); err != nil {
		errs = append(errs, err)
	}
	if c.Registerer == nil {
		errs = append(errs, errors.New("Registerer is nil"))
	}
	return errors.Join(errs...)
}

func (c Config) checkBlockMark() error {
	switch c.BlockMark {
	case 0:
		return nil
	case c.Mark:
		return errors.New("is the same bit as Mark")
	}
	return CheckMark(c.BlockMark)
}

// CheckMark returns nil if mark is exactly one bit and not one of kube-proxy's. The
// error does not name the mark.
func CheckMark(mark uint32) error {
	switch {
	case bits.OnesCount32(mark) != 1:
		return errors.New("is not exactly one bit")
	case mark&kubeProxyMarks != 0:
		return errors.New("belongs to kube-proxy")
	}
	return nil
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
