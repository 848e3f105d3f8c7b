package enforce

import (
	"net/netip"
	"sync/atomic"

	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// The denial log is meant to be read by people, and attackers choose how many packets
// are denied. Beyond this rate denials are only counted.
const (
	denialsPerSecond = 10
	denialBurst      = 50
)

// denialLog logs denied packets at a bounded rate. A nil denialLog logs nothing.
type denialLog struct {
	logger     klog.Logger
	limiter    *rate.Limiter
	suppressed atomic.Uint64 // denials since the last line that was logged
}

func newDenialLog(logger klog.Logger) *denialLog {
	return &denialLog{logger: logger, limiter: rate.NewLimiter(denialsPerSecond, denialBurst)}
}

// enabled reports whether a line may be logged now.
func (l *denialLog) enabled() bool {
	if l == nil {
		return false
	}
	if !l.limiter.Allow() {
		l.suppressed.Add(1)
		return false
	}
	return true
}

// denied logs a denied packet with its pods and the policy that denied it.
func (l *denialLog) denied(p packet.Packet, d policy.Decision, s *policy.Snapshot) {
	if !l.enabled() {
		return
	}
	args := []any{
		"protocol", p.Proto.String(),
		"src", p.Src.String(), "srcPod", podAt(s, p.Src.Addr()),
		"dst", p.Dst.String(), "dstPod", podAt(s, p.Dst.Addr()),
		"direction", d.Direction.String(), "tier", d.Tier.String(), "reason", d.Reason.String(),
		"policy", d.Policy.String(),
	}
	if d.Reason == policy.RuleMatched {
		args = append(args, "rule", d.Rule)
	}
	l.write("Packet denied", args)
}

// unparsable logs a packet whose addresses could not be read.
func (l *denialLog) unparsable(err error) {
	if l.enabled() {
		l.write("Packet cannot be parsed", []any{"reason", err.Error()})
	}
}

func (l *denialLog) write(msg string, args []any) {
	if n := l.suppressed.Swap(0); n > 0 {
		args = append(args, "notLoggedBefore", n)
	}
	l.logger.Info(msg, args...)
}

func podAt(s *policy.Snapshot, a netip.Addr) string {
	if e := s.Endpoint(a); e != nil {
		return e.String()
	}
	return ""
}
