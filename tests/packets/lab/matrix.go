package lab

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// Traffic is the traffic of probes.
type Traffic struct {
	Proto  Proto
	Port   uint16
	Family Family
}

// Over returns the same traffic over a family.
func (t Traffic) Over(family Family) Traffic {
	t.Family = family
	return t
}

// String returns, for example, "TCP 80 over IPv6".
func (t Traffic) String() string {
	if t.Proto == ICMP {
		return fmt.Sprintf("%s over %s", t.Proto, t.Family)
	}
	return fmt.Sprintf("%s %d over %s", t.Proto, t.Port, t.Family)
}

// Bounds of Observe.
const (
	// firstTimeout is how long to wait for an answer if none is expected, or in the first
	// attempt. An answer takes about a millisecond.
	firstTimeout = 300 * time.Millisecond
	// maxTimeout is how long to wait in the last attempts for an expected answer, on a busy
	// machine. Each attempt waits twice as long as the previous one.
	maxTimeout = 5 * time.Second
	// probesAtOnce limits the concurrent probes.
	probesAtOnce = 200
)

// Observe probes every pair of pods until all are as expected or ctx ends, and returns the
// last outcomes. A change of policies takes a moment to become effective, so only pairs
// that differ are tried again. The timeout for denied pairs is short and they are tried
// often, because a datagram may have the ports of one that was accepted before the change.
func Observe(ctx context.Context, pods []*Pod, traffic Traffic, want *netpol.TruthTable) (*netpol.TruthTable, error) {
	byName := make(map[string]*Pod, len(pods))
	for _, pod := range pods {
		byName[pod.Name] = pod
	}
	got := netpol.NewTruthTable(want.Pods(), false)
	open := got.Compare(netpol.NewTruthTable(want.Pods(), true)) // every pair
	timeout := firstTimeout
	wait := func(pair netpol.Pair) time.Duration {
		if want.Get(pair.From, pair.To) {
			return timeout
		}
		return firstTimeout
	}
	err := Poll(ctx, func() (bool, error) {
		if err := probePairs(ctx, byName, open, traffic, wait, got); err != nil {
			return false, err
		}
		open = want.Compare(got)
		timeout = min(2*timeout, maxTimeout)
		return len(open) == 0, nil
	})
	if err != nil && err != ctx.Err() { // the end of ctx is not an error
		return nil, err
	}
	return got, nil
}

// probePairs tries pairs concurrently and stores the outcomes in got.
func probePairs(ctx context.Context, pods map[string]*Pod, pairs []netpol.Pair, traffic Traffic, wait func(netpol.Pair) time.Duration, got *netpol.TruthTable) error {
	reaches := make([]bool, len(pairs))
	var group errgroup.Group
	group.SetLimit(probesAtOnce)
	for i, pair := range pairs {
		group.Go(func() error {
			from, to := pods[pair.From], pods[pair.To]
			answer, err := from.Probe(ctx, traffic.Proto, netip.AddrPortFrom(to.Addr(traffic.Family), traffic.Port), wait(pair))
			if err != nil {
				return fmt.Errorf("%s from %s to %s: %w", traffic, from.Name, to.Name, err)
			}
			if answer.Outcome == Connected && answer.From != "" && answer.From != to.Name {
				return fmt.Errorf("%s from %s to %s: %s answered", traffic, from.Name, to.Name, answer.From)
			}
			reaches[i] = answer.Outcome == Connected
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for i, pair := range pairs {
		got.Set(pair.From, pair.To, reaches[i])
	}
	return nil
}
