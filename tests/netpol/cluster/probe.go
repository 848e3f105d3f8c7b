package cluster

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

const (
	// Limits of concurrent commands, and of concurrent connections of each.
	commandsAtOnce, connectionsAtOnce = 4, 4

	// connectionsOfCommand limits the connections of one command. The command is part
	// of a URL, which must stay below the 8 KiB that proxies accept.
	connectionsOfCommand = 40
)

// runner runs a command in a container of a pod and returns its output, even if the
// command fails.
type runner func(ctx context.Context, namespace, pod, container string, command []string) (output string, err error)

// newExec returns a runner over the API server.
func newExec(access *rest.Config, client kubernetes.Interface) runner {
	return func(ctx context.Context, namespace, pod, container string, command []string) (string, error) {
		request := client.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name(pod).SubResource("exec").
			VersionedParams(&corev1.PodExecOptions{Container: container, Command: command, Stdout: true, Stderr: true}, scheme.ParameterCodec)
		executor, err := remotecommand.NewWebSocketExecutor(access, "GET", request.URL().String())
		if err != nil {
			return "", err
		}
		var output bytes.Buffer
		err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &output, Stderr: &output})
		return output.String(), err
	}
}

// Probe runs commands in the client pods. Each makes many connections: starting a
// command costs a node more than a connection does. If no command could be run, Probe
// returns the error of the first.
func (b *Backend) Probe(ctx context.Context, connections []netpol.Connection) ([]netpol.Outcome, error) {
	outcomes := slices.Repeat([]netpol.Outcome{netpol.Unobservable}, len(connections))
	var ran atomic.Bool
	var failure atomic.Pointer[error]
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(commandsAtOnce)
	for from, indices := range bySource(connections) {
		namespace, pod, _ := strings.Cut(from, "/")
		for indices := range slices.Chunk(indices, connectionsOfCommand) {
			group.Go(func() error {
				output, err := b.run(ctx, namespace, pod, clientContainer, []string{"/bin/sh", "-c", b.script(connections, indices)})
				if err != nil && output == "" {
					failure.CompareAndSwap(nil, &err)
				} else {
					ran.Store(true) // an error leaves lines out
				}
				readOutcomes(output, outcomes)
				return ctx.Err()
			})
		}
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if err := failure.Load(); err != nil && !ran.Load() {
		return nil, fmt.Errorf("run a command in a pod: %w", *err)
	}
	return outcomes, nil
}

// bySource returns the indices of the connections that each pod makes.
func bySource(connections []netpol.Connection) map[string][]int {
	indices := make(map[string][]int)
	for i, c := range connections {
		indices[c.From] = append(indices[c.From], i)
	}
	return indices
}

// script returns a shell script that makes connections, a few at a time. For each it
// prints a line: the index of the connection, the exit status of agnhost, its output.
func (b *Backend) script(connections []netpol.Connection, indices []int) string {
	var script strings.Builder
	script.WriteString(`try() { i=$1; shift; said=$(/agnhost connect "$@" 2>&1); echo "$i $? $said"; }` + "\n")
	started := 0
	for _, i := range indices {
		c := connections[i]
		addr := b.address(c)
		if addr == "" {
			continue
		}
		fmt.Fprintf(&script, "try %d --timeout=%s --protocol=%s %s &\n", i, c.Silence,
			strings.ToLower(string(c.Protocol)), net.JoinHostPort(addr, strconv.Itoa(int(c.Port))))
		if started++; started%connectionsAtOnce == 0 {
			script.WriteString("wait\n")
		}
	}
	script.WriteString("wait\n")
	return script.String()
}

// readOutcomes stores the outcomes that a script printed. A connection without a line
// was not tried.
func readOutcomes(output string, outcomes []netpol.Outcome) {
	for line := range strings.Lines(output) {
		var i, status int
		if n, _ := fmt.Sscan(line, &i, &status); n < 2 || i < 0 || i >= len(outcomes) {
			continue
		}
		said := strings.Fields(line)[2:]
		outcomes[i] = outcomeOf(status, strings.Join(said, " "))
	}
}

// outcomeOf returns the outcome for an output of agnhost. An attempt that agnhost could
// not make is Unobservable.
func outcomeOf(status int, said string) netpol.Outcome {
	switch {
	case status == 0:
		return netpol.Connected
	case strings.HasPrefix(said, "TIMEOUT"):
		return netpol.TimedOut
	case strings.HasPrefix(said, "REFUSED"):
		return netpol.Refused
	default:
		return netpol.Unobservable
	}
}

// address returns the destination of a connection, empty if it has no address.
func (b *Backend) address(c netpol.Connection) string {
	b.mu.RLock()
	defer b.mu.RUnlock()
	addresses := b.addresses
	if c.Via == netpol.Service || b.cfg.ViaServices {
		addresses = b.services
	}
	return addresses[key(c.To, c.Family)]
}

// key names an address of a pod or of its Service.
func key(pod string, family corev1.IPFamily) string { return pod + " " + string(family) }
