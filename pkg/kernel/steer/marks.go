package steer

import (
	"errors"
	"fmt"
	"math/bits"
	"strconv"
)

const (
	// DefaultMark is the default of Marks.Decided.
	DefaultMark uint32 = 0x1000
	// DefaultLowerMark is the default of Marks.Lower.
	DefaultLowerMark uint32 = 0x800

	// kubeProxyMarks are the bits that kube-proxy's KUBE-MARK-DROP and KUBE-MARK-MASQ set.
	kubeProxyMarks uint32 = 0x8000 | 0x4000
)

// Marks are the agent's two bits in packet marks and connection marks.
type Marks struct {
	// Decided is the higher bit. It marks packets and connections that the agent has accepted.
	Decided uint32
	// Lower is the lower bit. In connection marks it marks blocked connections, and in packet
	// marks packets whose class the kernel should remember.
	Lower uint32
}

// DefaultMarks lie below the bits of kube-proxy (0x4000, 0x8000), portmap (0x2000), kube-router and
// Weave (0x10000 to 0x40000), Tailscale (0xff0000) and Calico (0xffff0000), and above that of the AWS
// VPC plugin (0x80).
var DefaultMarks = Marks{Decided: DefaultMark, Lower: DefaultLowerMark}

// Mask returns both bits.
func (m Marks) Mask() uint32 { return m.Decided | m.Lower }

// MarshalText implements encoding.TextMarshaler.
func (m Marks) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%#x", m.Mask()), nil }

// UnmarshalText parses a mask of two bits, so that Marks can be a flag.
func (m *Marks) UnmarshalText(text []byte) error {
	number, err := strconv.ParseUint(string(text), 0, 32)
	mask := uint32(number)
	switch {
	case err != nil:
		return errors.New("must be a number of 32 bits")
	case bits.OnesCount32(mask) == 1:
		return fmt.Errorf("has one bit: write the mask of two, such as %#x", withLower(mask))
	case bits.OnesCount32(mask) != 2:
		return errors.New("must be a mask of exactly two bits")
	case mask&kubeProxyMarks != 0:
		return fmt.Errorf("%#x belongs to kube-proxy", mask&kubeProxyMarks)
	}
	m.Lower = mask & -mask
	m.Decided = mask &^ m.Lower
	return nil
}

// withLower returns a mask whose higher bit is mark, so that existing connection marks keep their
// meaning.
func withLower(mark uint32) uint32 {
	switch {
	case mark > DefaultLowerMark:
		return mark | DefaultLowerMark
	case mark > 1:
		return mark | mark>>1
	}
	return DefaultMarks.Mask()
}

// checkMark returns nil if mark is exactly one bit that kube-proxy does not use. The error does not
// name the mark.
func checkMark(mark uint32) error {
	switch {
	case bits.OnesCount32(mark) != 1:
		return errors.New("is not exactly one bit")
	case mark&kubeProxyMarks != 0:
		return errors.New("belongs to kube-proxy")
	}
	return nil
}
