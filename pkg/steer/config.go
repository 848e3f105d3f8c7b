package steer

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// DefaultMark is the mark bit that is ours unless the operator moves it.
	DefaultMark uint32 = 0x1000

	// kubeProxyMarks are the bits by which kube-proxy asks for a drop or a
	// masquerade (its KUBE-MARK-DROP and KUBE-MARK-MASQ).
	kubeProxyMarks uint32 = 0x8000 | 0x4000

	// DefaultShare is many more connections than a usual pod opens, and few enough
	// for many pods to use up theirs at once.
	DefaultShare uint32 = 1000
	// MaxShare is more than any kernel queues.
	MaxShare uint32 = 1000000
)

// Divert is the way by which the table hands a packet to a queue.
type Divert uint8

const (
	// DivertAuto takes DivertQueue where the kernel has it and else
	// DivertXTables.
	DivertAuto Divert = iota
	// DivertQueue is the nftables queue statement.
	DivertQueue
	// DivertXTables is the NFQUEUE target of xtables, called through
	// nft_compat: for kernels without the queue statement.
	DivertXTables
)

var divertNames = [...]string{DivertAuto: "auto", DivertQueue: "queue", DivertXTables: "xtables"}

// String returns the word by which flags, logs and metrics name d.
func (d Divert) String() string {
	if int(d) < len(divertNames) {
		return divertNames[d]
	}
	return fmt.Sprintf("Divert(%d)", uint8(d))
}

// MarshalText returns the word that UnmarshalText reads.
func (d Divert) MarshalText() ([]byte, error) {
	return []byte(d.String()), nil
}

// UnmarshalText reads auto, queue or xtables, so that a Divert can be a flag.
func (d *Divert) UnmarshalText(text []byte) error {
	i, err := nameIndex(divertNames[:], text)
	*d = Divert(i)
	return err
}

// EarlyUDP says whether new UDP connections are judged at prerouting already, if
// their destination was translated.
//
// Two packets of one such connection may wait in a queue at the same time, each
// with a destination of its own: DNS clients ask for IPv4 and IPv6 addresses at
// once, from one socket. Kernels before 6.12 then send the second one where the
// first one goes, but by the way of its own destination, and it is lost. Before
// routing there is no way yet.
type EarlyUDP uint8

const (
	// EarlyAuto takes EarlyOn unless the kernel is known not to need it.
	EarlyAuto EarlyUDP = iota
	// EarlyOn judges at prerouting, behind DNAT.
	EarlyOn
	// EarlyOff judges all at postrouting.
	EarlyOff
)

var earlyNames = [...]string{EarlyAuto: "auto", EarlyOn: "true", EarlyOff: "false"}

// String returns the word by which flags and logs name e.
func (e EarlyUDP) String() string {
	if int(e) < len(earlyNames) {
		return earlyNames[e]
	}
	return fmt.Sprintf("EarlyUDP(%d)", uint8(e))
}

// MarshalText returns the word that UnmarshalText reads.
func (e EarlyUDP) MarshalText() ([]byte, error) {
	return []byte(e.String()), nil
}

// UnmarshalText reads auto, true or false, so that an EarlyUDP can be a flag.
func (e *EarlyUDP) UnmarshalText(text []byte) error {
	i, err := nameIndex(earlyNames[:], text)
	*e = EarlyUDP(i)
	return err
}

// nameIndex finds text among names. With an error it returns 0.
func nameIndex(names []string, text []byte) (int, error) {
	i := slices.Index(names, string(text))
	if i < 0 {
		return 0, fmt.Errorf("%q is none of %s", text, strings.Join(names, ", "))
	}
	return i, nil
}

// Config says what the table looks like. It does not change while a Steerer
// lives.
type Config struct {
	// Queue is the number of the first queue, Queues how many follow each other
	// from there; the kernel spreads packets over them by CPU.
	Queue, Queues uint16
	// Bypass lets the kernel accept what nobody listens for (fail open). When
	// false it drops.
	Bypass bool
	// ObserveQueue is the number of the queue to which the observer listens. What
	// nobody listens for there goes on, as does what the observer has seen. Zero
	// means that there is no observer.
	ObserveQueue uint16
	// Mark is the one bit of packet mark and conntrack mark that is ours. The
	// agent sets it in the packet mark of what it accepts, and leaves all other
	// bits as it got them.
	Mark uint32
	// BlockMark is the one bit of the conntrack mark of connections that nothing
	// passes on any more, in either direction. Somebody else sets it. Zero means
	// that there is no such bit, and that established connections go on.
	BlockMark uint32
	// Share is how many packets a second one local pod may have judged ahead of what
	// exceeds the shares of others. Zero means that there are no shares.
	Share uint32
	// OverflowQueue is the number of the first queue for what exceeds a share; there
	// are as many as Queues.
	OverflowQueue uint16
	// Divert is the way into the queue.
	Divert Divert
	// EarlyUDP is where new UDP connections are judged whose destination was
	// translated.
	EarlyUDP EarlyUDP
	// SCTPPerPacket has SCTP judged packet by packet in the original direction,
	// for kernels that track SCTP by addresses only.
	SCTPPerPacket bool
	// InForce is told the Sets.Serial of each wish that has come into force. Nil is
	// told nothing. It is called from the goroutine that writes, and must not block.
	InForce func(serial uint64)
	// Repaired is told each time that the table was found changed by another process
	// and was put right: packets may have passed meanwhile that should have been
	// steered. Nil is told nothing. It is called from the goroutine that writes, and
	// must not block.
	Repaired func()
	// SourceCheck makes the chains that check the sources of packets, and those that
	// keep pods out of tunnels, see Sets.CheckSources. A kernel that cannot look
	// routes up goes without.
	SourceCheck bool
	// Registerer receives the metrics.
	Registerer prometheus.Registerer
}

// Validate names every field that cannot work.
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
		return errors.New("is Mark, too")
	}
	return CheckMark(c.BlockMark)
}

// CheckMark tells whether mark can be ours: it must be exactly one bit, and none
// of kube-proxy's. The error is about the mark and does not name it.
func CheckMark(mark uint32) error {
	switch {
	case bits.OnesCount32(mark) != 1:
		return errors.New("is not exactly one bit")
	case mark&kubeProxyMarks != 0:
		return errors.New("belongs to kube-proxy")
	}
	return nil
}

// choose settles DivertAuto and refuses what the kernel lacks.
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

// choose settles EarlyAuto.
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
