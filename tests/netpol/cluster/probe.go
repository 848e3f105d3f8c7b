package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// newExec returns a runner that uses the API server.
func newExec(access *rest.Config, client kubernetes.Interface, run runName) runner {
	return func(ctx context.Context, namespace, pod string, command []string, in io.Reader, out, errs io.Writer) error {
		return Exec(ctx, access, client, types.NamespacedName{Namespace: run.of(namespace), Name: pod}, proberContainer, command,
			remotecommand.StreamOptions{Stdin: in, Stdout: out, Stderr: errs})
	}
}

// Probe asks the session of each pod to make the pod's connections. If no session answers,
// Probe returns the first error.
func (b *Backend) Probe(ctx context.Context, connections []netpol.Connection) ([]netpol.Outcome, error) {
	outcomes := slices.Repeat([]netpol.Outcome{netpol.Unobservable}, len(connections))
	var answered atomic.Bool
	var failure atomic.Pointer[error]
	var group errgroup.Group
	for from, indices := range bySource(connections) {
		group.Go(func() error {
			results, err := b.session(from).try(ctx, b.attempts(connections, indices))
			if err != nil && ctx.Err() == nil {
				b.countRetry() // the runner tries again what was not observed
			}
			if err != nil {
				err = fmt.Errorf("%s makes no connections: %w", from, err)
				failure.CompareAndSwap(nil, &err)
			}
			for i, r := range results {
				answered.Store(true)
				outcomes[i] = outcomeOf(r.Failure)
			}
			return ctx.Err()
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if err := failure.Load(); err != nil && !answered.Load() {
		return nil, *err
	}
	return outcomes, nil
}

// Time makes connections one after the other. Their pods measure them, with the prober.
func (b *Backend) Time(ctx context.Context, connections []netpol.Connection) ([]time.Duration, error) {
	if !b.ownProber() {
		return nil, errors.ErrUnsupported
	}
	var took []time.Duration
	for i, c := range connections {
		results, err := b.session(c.From).try(ctx, b.attempts(connections, []int{i}))
		if err != nil {
			return nil, fmt.Errorf("%s makes no connections: %w", c.From, err)
		}
		r, made := results[i]
		if !made || r.Failure != "" {
			return nil, fmt.Errorf("%s: %s", c, cmp.Or(r.Error, "no address"))
		}
		took = append(took, time.Duration(r.Took*float64(time.Millisecond)))
	}
	return took, nil
}

// bySource returns the indices of connections by the pod that makes them.
func bySource(connections []netpol.Connection) map[string][]int {
	indices := make(map[string][]int)
	for i, c := range connections {
		indices[c.From] = append(indices[c.From], i)
	}
	return indices
}

// attempts returns the attempts for the connections of a pod, without those whose
// destination has no address. IDs are indices of connections.
func (b *Backend) attempts(connections []netpol.Connection, indices []int) []attempt {
	var attempts []attempt
	for _, i := range indices {
		c := connections[i]
		if target := b.target(c); target != "" {
			attempts = append(attempts, attempt{ID: i, Target: target, Milliseconds: c.Silence.Milliseconds()})
		}
	}
	return attempts
}

// target returns the prober's name of the destination of a connection, or "" if it has no address.
func (b *Backend) target(c netpol.Connection) string {
	via := c.Via
	switch {
	case c.Protocol == netpol.ICMP: // Services answer no echo requests
		via = netpol.Direct
	case via == netpol.Direct && b.cfg.ViaServices:
		via = netpol.Service
	}
	b.mu.Lock()
	addr, port := b.addresses[way{c.To, c.Family, via}], c.Port
	if number, ok := b.nodePorts[servedPort{c.To, c.Protocol, c.Port}]; ok && via == netpol.NodePort {
		port = number
	}
	b.mu.Unlock()
	switch {
	case addr == "":
		return ""
	case c.Protocol == netpol.ICMP:
		return (&url.URL{Scheme: "icmp", Host: strings.TrimSuffix(net.JoinHostPort(addr, ""), ":")}).String()
	}
	return strings.ToLower(string(c.Protocol)) + "://" + net.JoinHostPort(addr, strconv.Itoa(int(port)))
}

// outcomeOf returns the outcome for a kind of failure. An attempt that could not be made is
// Unobservable.
func outcomeOf(failure string) netpol.Outcome {
	switch failure {
	case "":
		return netpol.Connected
	case "timeout":
		return netpol.TimedOut
	case "refused", "reset", "unreachable":
		return netpol.Refused
	default:
		return netpol.Unobservable
	}
}

// session returns the session of a pod or host. It starts one if there is none or if it has ended,
// for example with its container.
func (b *Backend) session(name string) *session {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.sessions[name]
	if s == nil || s.hasEnded() {
		s = startSession(b.runnerOf(name), name, b.program, b.program.try())
		b.sessions[name] = s
	}
	return s
}

// endSession ends the session of a deleted pod or of a host, if there is one.
func (b *Backend) endSession(name string) {
	b.mu.Lock()
	s := b.sessions[name]
	delete(b.sessions, name)
	b.mu.Unlock()
	if s != nil {
		s.end()
	}
}
